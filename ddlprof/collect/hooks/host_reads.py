"""What the host reads of tensors in the first steps: it tells models that act or are evaluated from teachers.

The methods are tensors' own again when the first steps are over.
"""

from __future__ import annotations

import threading
from typing import Any

from ddlprof.collect.hooks.shadows import HeardShadow, Shadows, away_while_tracing
from ddlprof.collect.install import Uninstall, quietly
from ddlprof.collect.recorder import FIRST_STEPS
from ddlprof.collect.surroundings import Surroundings
from ddlprof.collect.torch_private.engine import unheard

_METHODS = ("item", "tolist", "numpy", "__float__", "__int__", "__index__", "__bool__")


def install(around: Surroundings) -> Uninstall:
    """Tells `FrozenModules` of numbers that the host asks of tensors; truth values are mostly checks of arguments."""
    torch, recorder, shadows = around.torch, around.recorder, Shadows()
    frozen = around.modules.frozen

    def look(this: Any) -> None:
        if threading.get_ident() != recorder.thread:
            return
        if recorder.boundaries > FIRST_STEPS:
            around.later(shadows.take)
            return
        with unheard(torch):
            if this.dtype is not torch.bool:
                frozen.reads(this.dim(), this.is_floating_point())

    look = quietly(look, recorder)

    for name in _METHODS:
        shadows.add(torch.Tensor, name, HeardShadow(getattr(torch.Tensor, name), look))
    return away_while_tracing(around, shadows)
