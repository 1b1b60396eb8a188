"""The raw functions of torch's profilers, and other private names that concern devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ddlprof.torch_private.names import PrivateName, find, imported, need

_WINDOWS = "there are no profiler windows: idle_share and the durations of kernels stay empty"
_GAPS = "gaps between forward and update are not looked into: what they hold counts as compute"
_THEIRS = "ddlprof's profiler may be in the way of the script's own"

NAMES = (
    PrivateName("torch:_C._autograd._profiler_enabled", "tells whether a profiler is on", f"{_WINDOWS}; {_GAPS}"),
    PrivateName("torch:_C._autograd._profiler_type", "tells profilers", "ranges of NVTX pass for a profiler"),
    PrivateName("torch:_C._autograd._prepare_profiler", "opens a profiler window", _WINDOWS),
    PrivateName("torch:_C._autograd._enable_profiler", "opens a profiler window", _WINDOWS),
    PrivateName("torch:_C._autograd._disable_profiler", "closes a profiler window", _WINDOWS),
    PrivateName("torch:_C._autograd._enable_profiler_legacy", "looks for operators in a gap", _GAPS),
    PrivateName("torch:_C._autograd._disable_profiler_legacy", "looks for operators in a gap", _GAPS),
    PrivateName("torch:_C._profiler.ProfilerConfig", "says what the profilers record", f"{_WINDOWS}; {_GAPS}"),
    PrivateName("torch:_C._profiler._ExperimentalConfig", "says what the profilers record", f"{_WINDOWS}; {_GAPS}"),
    PrivateName("torch.autograd.profiler:_prepare_profiler", "makes way for the script's profiler", _THEIRS),
    PrivateName("torch.autograd.profiler:_enable_profiler", "makes way for the script's profiler", _THEIRS),
    PrivateName("torch.autograd.profiler:_disable_profiler", "sees the script's profiler end", _THEIRS),
    PrivateName(
        "torch.autograd.profiler_legacy:_enable_profiler_legacy", "makes way for the script's profiler", _THEIRS
    ),
    PrivateName("torch.autograd.profiler_legacy:_disable_profiler_legacy", "sees the script's profiler end", _THEIRS),
    PrivateName("torch.profiler._cupti_monitor:get_monitor", "makes way for torch's monitor", _THEIRS, "2.13"),
    PrivateName(
        "torch:_C._cuda_synchronize",
        "times torch.cuda.synchronize",
        "waits of the host for the whole device are not told from other host time",
        needs="cuda",
    ),
)

_RANGES = ("NVTX", "ITT")
"""Kinds that only name ranges for another profiler."""
_NOTHING_MORE = (False,) * 5  # shapes, memory, stacks, FLOPs, modules
_LEGACY = ("_enable_profiler_legacy",)
STARTS = {"profiler": ("_prepare_profiler", "_enable_profiler"), "profiler_legacy": _LEGACY}
"""Functions that modules of torch.autograd call when a profiler of the script's begins, by module."""
ENDS = {"profiler": ("_disable_profiler",), "profiler_legacy": ("_disable_profiler_legacy",)}
"""Functions that they call when it ends, by module."""
SYNCHRONIZE = "_cuda_synchronize"
"""Function of `torch._C` that `torch.cuda.synchronize` calls, however the script has imported that."""


def records(torch: Any) -> bool:
    """Whether a profiler of torch's keeps what this thread does; False also where torch does not tell."""
    is_on, kind = find(torch, "_C._autograd._profiler_enabled"), find(torch, "_C._autograd._profiler_type")
    return is_on is not None and is_on() and (kind is None or kind().name not in _RANGES)


def of_operators(torch: Any) -> tuple[Callable[..., Any], ...]:
    """Functions: whether a profiler is on; start, stop that of operators. Raises AttributeError if one is missing."""
    return _functions(torch, "_profiler_enabled", "_enable_profiler_legacy", "_disable_profiler_legacy")


def of_device(torch: Any) -> tuple[Callable[..., Any], ...]:
    """Functions: prepare, start, stop that of a device; whether one is on. Raises AttributeError if one is missing."""
    return _functions(torch, "_prepare_profiler", "_enable_profiler", "_disable_profiler", "_profiler_enabled")


def _functions(torch: Any, *names: str) -> tuple[Callable[..., Any], ...]:
    return tuple(need(torch, f"_C._autograd.{name}") for name in names)


def config(torch: Any, state: str) -> Any:
    """A profiler's settings for this state, `CPU` or `KINETO`. Raises AttributeError or TypeError elsewhere."""
    profiler = need(torch, "_C._profiler")
    experimental = need(torch, "_C._profiler._ExperimentalConfig")()
    return profiler.ProfilerConfig(getattr(profiler.ProfilerState, state), *_NOTHING_MORE, experimental)


def activity(torch: Any, device: str) -> Any:
    """The `ProfilerActivity` of a device. Raises AttributeError if torch has none for it."""
    return getattr(need(torch, "_C._profiler.ProfilerActivity"), device)


def monitor() -> Any:
    """Torch's monitor of the device, which has the device's profiler; None without one."""
    module = imported("torch.profiler._cupti_monitor")
    return module.get_monitor() if module is not None else None


def owner_of_synchronize(torch: Any) -> Any:
    """The module with the function named `SYNCHRONIZE`; None where there is none."""
    core = find(torch, "_C")
    return core if hasattr(core, SYNCHRONIZE) else None
