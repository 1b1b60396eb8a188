"""The table of supported accelerators, and what is not measured on others.

A new kind is a file beside `cuda.py` and a line here. For other kinds of devices there is a line that says what is not
measured on them; `ddlprof doctor` prints it where such a device exists.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

from ddlprof.collect.accelerator.cuda import Cuda
from ddlprof.collect.accelerator.protocol import Accelerator

KINDS: tuple[type[Accelerator], ...] = (Cuda,)


def of_build(torch: Any) -> Accelerator | None:
    """The first kind that this build of torch supports; None if steps are timed on the host only."""
    return next((kind(torch) for kind in KINDS if kind.is_built(torch)), None)


def in_use() -> Accelerator | None:
    """The kind that the script computes on; None as long as it uses none or has not imported torch."""
    torch = sys.modules.get("torch")
    accelerator = None if torch is None else of_build(torch)
    return accelerator if accelerator is not None and accelerator.in_use() else None


def uses_tf32(device: Any, convolutions: bool) -> bool:
    """Whether matrix products, or convolutions, run in TF32 on a device; False for an unknown kind."""
    accelerator = of_build(sys.modules["torch"])
    return accelerator is not None and device.type == accelerator.kind and accelerator.uses_tf32(device, convolutions)


ON_THE_HOST = (
    "steps are timed on the training thread, which runs ahead of the device: of their classes only waits for batches "
    "are measured, and all else is in other; the device's use and memory are not measured"
)
_UNTRIED = "nobody has tried it"


def _has_rocm(torch: Any) -> bool:
    return bool(torch.version.hip) and bool(torch.cuda.is_available())


def _has_mps(torch: Any) -> bool:
    return bool(torch.backends.mps.is_available())


def _has_xpu(torch: Any) -> bool:
    return bool(torch.xpu.is_available())


def _has_xla(torch: Any) -> bool:
    return find_spec("torch_xla") is not None


LIMITS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "ROCm": (
        _has_rocm,
        "steps, copies, streams and collectives are timed as on CUDA, whose names torch gives them; use, memory and "
        f"power of the device need amdsmi (ROCm's own, or pip install 'ddlprof[amd]'); {_UNTRIED}",
    ),
    "MPS": (_has_mps, f"{ON_THE_HOST}; torch has events for it, but one stream and no timeline; {_UNTRIED}"),
    "XPU": (_has_xpu, f"{ON_THE_HOST}; torch has events and streams for it, ddlprof has no file; {_UNTRIED}"),
    "XLA": (
        _has_xla,
        f"{ON_THE_HOST}; a step runs when the script marks its end; {_UNTRIED}",
    ),
}
"""By the name of a kind: whether such a device exists or torch was built for it, and what is not measured there."""


def limits_of(torch: Any) -> dict[str, str]:
    """What is not measured on the devices of this machine, by their names."""
    limits = {name: lacking for name, (is_there, lacking) in LIMITS.items() if _answer(is_there, torch)}
    other = _answer(_current_kind, torch)
    if other and other.upper() not in {*LIMITS, *(kind.kind.upper() for kind in KINDS)}:
        limits[other] = f"{ON_THE_HOST}; {_UNTRIED}"
    return limits


def _answer(question: Callable[[Any], Any], torch: Any) -> Any:
    try:
        return question(torch)
    except Exception:  # a build of torch without this kind
        return None


def _current_kind(torch: Any) -> str | None:
    """The kind of accelerator according to torch (2.6 and later)."""
    device = torch.accelerator.current_accelerator()
    return None if device is None else str(device.type)


_LIBRARIES = (
    (
        "transformer_engine.pytorch.module.base",
        "_ub_communicators",
        "comm",
        "not seen: transfers and waits of Transformer Engine's userbuffers; they are in compute",
    ),
    (
        "nvidia.dali.plugin.pytorch",
        "DALIGenericIterator",
        "data",
        "waits of the device for DALI's pipelines are not seen: they are in compute or h2d, and data is what the "
        "training thread waits",
    ),
)
"""A module, a name in it that is set if the library is used, and a note."""


def unobserved_waits() -> Iterator[tuple[str, str]]:
    """The source and text of a note for each such library that the script uses."""
    for module, name, source, text in _LIBRARIES:
        if getattr(sys.modules.get(module), name, None):
            yield source, text
