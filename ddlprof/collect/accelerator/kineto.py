"""Torch's profiler of a device (Kineto on CUPTI or roctracer), by its raw functions.

There is one in a process: whoever starts it ends the other's trace. Ours never starts while another tool's or the
script's is on, and makes way before the script's starts. `torch.profiler` itself would wait for the device when it
stops, and set variables of the environment; this does neither.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from ddlprof.collect.accelerator.kernels import Activity
from ddlprof.collect.install import Uninstall, all_of, replace
from ddlprof.torch_private import profiler
from ddlprof.torch_private.names import version_number

OTHER_TOOLS = (
    "NSYS_PROFILING_SESSION_ID",  # Nsight Systems
    "NV_COMPUTE_PROFILER_PERFWORKS_DIR", "NV_NSIGHT_INJECTION_TRANSPORT_TYPE",  # Nsight Compute
    "NV_SANITIZER_INJECTION_PORT_RANGE_BEGIN",  # compute-sanitizer
    "NVPROF_ID", "CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH",  # nvprof, and any tool that is injected
    "ROCP_TOOL_LIB", "HSA_TOOLS_LIB",  # rocprof
    "KINETO_USE_DAEMON",  # starts the profiler whenever somebody asks for it from outside
)  # fmt: skip
"""Variables of the environment by which tools that use the device's profiler are known."""

_TEARS_DOWN_CUDA, _TEARS_DOWN_TORCH = (12, 6), (2, 12)
_STAYS = (
    "CUPTI stays attached after a profiler window, and the steps after the first one may be 10 to 20 % slower "
    "(since CUDA 12.6 TEARDOWN_CUPTI=1 in the environment detaches it)"
)


def other_tool() -> str | None:
    """The variable that tells of another tool, if there is one."""
    return next((name for name in OTHER_TOOLS if os.environ.get(name)), None)


class Kineto:
    """Raises AttributeError or TypeError when made where torch has none. `device`: the kind to look at."""

    def __init__(self, torch: Any, device: str, capturing: Callable[[], bool]) -> None:
        self._prepare, self._enable, self._disable, self._enabled = profiler.of_device(torch)
        self._capturing = capturing
        self._script = torch.autograd
        self._device = getattr(torch.autograd.DeviceType, device)
        self._wanted = {profiler.activity(torch, device)}
        self._config = profiler.config(torch, "KINETO")
        self.warning = _STAYS if stays_attached(torch) else None
        self.theirs = False
        """The script has prepared or started a profiler, in any thread, and not stopped it."""

    def why_not(self) -> str | None:
        """Why it cannot be started now."""
        if self._capturing():
            return "a graph was being captured"
        tool = other_tool()
        if tool is not None:
            return f"{tool} is set, so another tool uses the device's profiler"
        if self.theirs or self._enabled() or profiler.monitor() is not None:
            return "the script's own profiler was on"
        return None

    def start(self) -> None:
        """Begins to record what the device does."""
        self._prepare(self._config, self._wanted)
        self._enable(self._config, self._wanted)

    def stop(self) -> Any:
        """Stops recording; only in the thread that started it."""
        return self._disable()

    def activities(self, result: Any) -> list[Activity]:
        """The activities of the device, in unix time."""
        return [
            Activity(event.name(), event.start_ns(), event.start_ns() + event.duration_ns())
            for event in result.events()
            if event.device_type() == self._device and not _is_annotation(event)
        ]

    def watch(self, make_way: Callable[[], None]) -> Uninstall:
        """Sees the script's profilers begin and end; `make_way` is called before one begins."""

        def beginning(original: Callable[..., Any]) -> Callable[..., Any]:
            def begin(*args: Any, **kwargs: Any) -> Any:
                self.theirs = True
                make_way()
                return original(*args, **kwargs)

            return begin

        def ending(original: Callable[..., Any]) -> Callable[..., Any]:
            def end(*args: Any, **kwargs: Any) -> Any:
                self.theirs = False
                return original(*args, **kwargs)

            return end

        wrapped: list[Uninstall] = []
        for modules, wrap in ((profiler.STARTS, beginning), (profiler.ENDS, ending)):
            for module, names in modules.items():
                owner = getattr(self._script, module)
                wrapped += [replace(owner, name, wrap(vars(owner)[name])) for name in names]
        return all_of(*wrapped)


def _is_annotation(event: Any) -> bool:
    """Whether it is a name that spans what the device did, and nothing that it did."""
    return hasattr(event, "is_user_annotation") and bool(event.is_user_annotation())


def stays_attached(torch: Any) -> bool:
    """Whether CUPTI may slow down later steps, as it is not taken down at the end of a window (kineto#1264)."""
    if not torch.version.cuda:
        return False
    asked = os.environ.get("TEARDOWN_CUPTI")
    if asked is not None:
        return asked == "0"
    return (
        version_number(torch.version.cuda) < _TEARS_DOWN_CUDA or version_number(torch.__version__) < _TEARS_DOWN_TORCH
    )
