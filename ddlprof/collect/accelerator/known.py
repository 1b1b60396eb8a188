"""The table of kinds of accelerators, and what is not measured on others.

`of_torch` takes the first kind in the table that torch says it computes on. A new kind is a file beside `cuda.py` and a
line here; all others that torch knows are `Generic`. For what is left there is a line that says what is not measured;
`ddlprof doctor` prints it where such a device exists.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

from ddlprof.collect.accelerator.cuda import Cuda
from ddlprof.collect.accelerator.generic import Generic
from ddlprof.collect.accelerator.mps import Mps
from ddlprof.collect.accelerator.protocol import Accelerator

KINDS: tuple[type[Accelerator], ...] = (Cuda, Mps, Generic)


def of_torch(torch: Any) -> Accelerator | None:
    """The kind that torch computes on here, as far as it knows by now; None if steps are timed on the host only.

    A backend that is no part of torch may be registered later, by an import of the script's. One that does not answer
    as torch's own do counts as none.
    """
    try:
        return next((kind(torch) for kind in KINDS if kind.is_current(torch)), None)
    except Exception:  # fail open
        return None


def at_start(torch: Any) -> Accelerator | None:
    """The kind whose hooks are installed before it is used; None if torch cannot tell then whether it is."""
    accelerator = of_torch(torch)
    return accelerator if accelerator is not None and accelerator.tells_use else None


def in_use() -> Accelerator | None:
    """The kind that the script computes on; None as long as it uses none or has not imported torch."""
    torch = sys.modules.get("torch")
    accelerator = None if torch is None else of_torch(torch)
    return accelerator if accelerator is not None and accelerator.in_use() else None


def uses_tf32(device: Any, convolutions: bool) -> bool:
    """Whether matrix products, or convolutions, run in TF32 on a device; False for an unknown kind."""
    accelerator = of_torch(sys.modules["torch"])
    return accelerator is not None and device.type == accelerator.kind and accelerator.uses_tf32(device, convolutions)


ON_THE_HOST = (
    "steps are timed on the training thread, which runs ahead of the device: of their classes only waits for batches "
    "are measured, and all else is in other; the device's use and memory are not measured"
)
_UNTRIED = "nobody has tried it"


def _has_rocm(torch: Any) -> bool:
    return bool(torch.version.hip) and bool(torch.cuda.is_available())


def _has_xla(torch: Any) -> bool:
    return find_spec("torch_xla") is not None


LIMITS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "ROCm": (
        _has_rocm,
        "steps, copies, streams and collectives are timed as on CUDA, whose names torch gives them; use, memory and "
        f"power of the device need amdsmi (ROCm's own, or pip install 'ddlprof[amd]'); {_UNTRIED}",
    ),
    "XLA": (
        _has_xla,
        f"{ON_THE_HOST}; a step runs when the script marks its end; {_UNTRIED}",
    ),
}
"""By the name of a kind: whether such a device exists or torch was built for it, and what is not measured there."""


def limits_of(torch: Any) -> dict[str, str]:
    """What is not measured on the devices of this machine, by their names."""
    limits = {name: lacking for name, (is_there, lacking) in LIMITS.items() if _answer(is_there, torch)}
    accelerator = _answer(of_torch, torch)
    if accelerator is not None and _answer(lambda _: accelerator.device_names(), torch):
        lacking = accelerator.lacking()
        if lacking:
            limits[accelerator.kind.upper()] = f"{lacking}; {_UNTRIED}"
    return limits


def _answer(question: Callable[[Any], Any], torch: Any) -> Any:
    try:
        return question(torch)
    except Exception:  # a torch without this kind
        return None


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
