"""CUDA devices, and AMD's under ROCm, which torch shows under the same names.

Their driver and profiler (Kineto); the counters are in `nvml.py` and `amd.py`.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from operator import attrgetter
from typing import Any

from ddlprof.collect.accelerator.amd import AmdsmiCounters
from ddlprof.collect.accelerator.nvml import NvmlCounters
from ddlprof.collect.accelerator.protocol import Accelerator, Counters, DeviceProfiler, Driver, current_kind
from ddlprof.collect.install import Uninstall, all_of, replace
from ddlprof.model.kernels import Activity
from ddlprof.torch_private import profiler
from ddlprof.torch_private.names import version_number

_CUDA = ("libcuda.so.1", "cuThreadExchangeStreamCaptureMode")
_HIP = ("libc10_hip.so", "hipThreadExchangeStreamCaptureMode")
"""Library and name of the function that sets how a thread treats captures. For ROCm, torch's own library is used."""
_RELAXED = 2


class CaptureMode:
    """Sets how the calling thread treats captures of graphs by other threads of the process.

    By default CUDA forbids a thread to do what might harm a capture, such as querying an event, and ends the capture if
    the thread does it all the same. In the relaxed mode only what needs the captured work itself is forbidden, and
    ddlprof never asks for that.

    Raises RuntimeError if torch has not loaded the library. Then none of our threads may query the device.
    """

    def __init__(self, torch: Any) -> None:
        library, function = _HIP if torch.version.hip else _CUDA
        try:
            self._exchange = getattr(ctypes.CDLL(library, mode=os.RTLD_NOLOAD), function)
        except (AttributeError, OSError) as error:
            raise RuntimeError(f"asking it might end captures of graphs ({error})") from None

    @contextmanager
    def relaxed(self) -> Iterator[None]:
        """A context in which calls of this thread do not end captures."""
        mode = ctypes.c_int(_RELAXED)
        self._swap(mode)
        try:
            yield
        finally:
            self._swap(mode)

    def _swap(self, mode: ctypes.c_int) -> None:
        """Sets the mode of this thread and writes the former mode into `mode`."""
        failure = self._exchange(ctypes.byref(mode))
        if failure:
            raise RuntimeError(f"the driver refused another capture mode: error {failure}")


class Cuda(Accelerator):
    """See `Accelerator`."""

    kind = "cuda"
    backend = "nccl"

    def __init__(self, torch: Any) -> None:
        cuda = torch.cuda
        self._torch = torch
        self._cuda = cuda
        self.in_use = cuda.is_initialized
        self.is_capturing = cuda.is_current_stream_capturing
        self.current_stream, self.default_stream = cuda.current_stream, cuda.default_stream
        self.event_type, self.stream_type = cuda.Event, cuda.Stream
        of_any_kind = getattr(getattr(torch, "accelerator", None), "Graph", None)  # torch 2.13 and later
        self.graph_types = (cuda.CUDAGraph,) if of_any_kind is None else (cuda.CUDAGraph, of_any_kind)
        owner = profiler.owner_of_synchronize(torch)  # the object that holds torch.cuda.synchronize
        if owner is not None:
            self.device_wait = owner, profiler.SYNCHRONIZE
        self.holds = attrgetter("is_cuda")

    @staticmethod
    def is_current(torch: Any) -> bool:
        """See `Accelerator`. Torch before 2.6 is asked for what it was built."""
        if hasattr(torch, "accelerator"):
            return current_kind(torch) == Cuda.kind
        return bool(torch.version.cuda or torch.version.hip)

    def driver(self, device: Any) -> Driver:
        """See `Accelerator`."""
        return CudaDriver(self._torch, device)

    def name(self, device: Any) -> str:
        """See `Accelerator`."""
        return str(self._cuda.get_device_properties(device).name)

    def device_names(self) -> list[str]:
        """See `Accelerator`."""
        if not self._cuda.is_available():
            return []
        return [self._cuda.get_device_name(index) for index in range(self._cuda.device_count())]

    def beside(self, device: Any) -> Any:
        """See `Accelerator`."""
        return self._cuda.Stream(device)

    def on_stream(self, stream: Any) -> AbstractContextManager[Any]:
        """See `Accelerator`."""
        found: AbstractContextManager[Any] = self._cuda.stream(stream)
        return found

    def profiler(self) -> DeviceProfiler | None:
        """See `Accelerator`."""
        return Kineto(self._torch, "CUDA", self.is_capturing)

    def sees_kernels(self) -> bool:
        """See `Accelerator`."""
        public = self._torch.profiler
        return public.ProfilerActivity.CUDA in public.supported_activities()

    def uses_tf32(self, device: Any, convolutions: bool) -> bool:
        """See `Accelerator`."""
        if not self._torch.version.cuda or self._cuda.get_device_capability(device) < (8, 0):
            return False
        backends = self._torch.backends
        flags = getattr(backends.cudnn, "conv", backends.cudnn) if convolutions else backends.cuda.matmul
        precision = getattr(flags, "fp32_precision", None)  # torch 2.9 and later; there `allow_tf32` may raise
        return bool(flags.allow_tf32 if precision is None else precision == "tf32")

    def counters(self) -> Counters | None:
        """See `Accelerator`. NVML supports NVIDIA's devices only, amdsmi AMD's."""
        return NvmlCounters(self._uuid) if self._torch.version.cuda else AmdsmiCounters(self._used)

    def _uuid(self) -> str | None:
        """UUIDs are the same for torch and NVML, whatever CUDA_VISIBLE_DEVICES hides or reorders."""
        used = self._used()
        return None if used is None else str(used.uuid)

    def _used(self) -> Any:
        """The properties of the device on which this process holds most memory; None while it holds none.

        The current device is not used: it is set per thread, and this is not the training thread.
        """
        if not self.in_use():
            return None
        used = {index: self._cuda.memory_reserved(index) for index in range(self._cuda.device_count())}
        device = max(used, key=lambda index: used[index])
        if used[device] == 0:
            return None
        return self._cuda.get_device_properties(device)

    def peak_allocated_bytes(self, device: Any = None) -> int | None:
        """See `Accelerator`."""
        return self._peak(device, "allocated_bytes")

    def peak_reserved_bytes(self, device: Any = None) -> int | None:
        """See `Accelerator`."""
        return self._peak(device, "reserved_bytes")

    def _peak(self, device: Any, name: str) -> int | None:
        """A peak of the allocator in bytes; None if this allocator keeps none."""
        stats = self._cuda.memory_stats_as_nested_dict(device) if self.in_use() else {}
        return int(stats[name]["all"]["peak"]) if name in stats else None


class CudaDriver:
    """The driver of one device."""

    def __init__(self, torch: Any, device: Any) -> None:
        self._cuda = torch.cuda
        self._capture_mode = CaptureMode(torch)
        self._record: Callable[[Any, Any], None] = torch.cuda.Event.record  # the class's own: no hook of ours sees it
        self.own_stream = torch.cuda.Stream(device, priority=-1)  # the pool that scripts use less

    def make_event(self) -> Any:
        """See `Driver`."""
        return self._cuda.Event(enable_timing=True)

    def record(self, event: Any, stream: Any) -> None:
        """See `Driver`."""
        self._record(event, stream)

    def aside(self) -> AbstractContextManager[Any]:
        """See `Driver`."""
        return self._aside()

    @contextmanager
    def _aside(self) -> Iterator[None]:
        # Leaving a stream of another device would make the former device current in a way that makes a context there.
        device, stream = self._cuda.device(self.own_stream.device), self._cuda.stream(self.own_stream)
        with self._capture_mode.relaxed(), device, stream:
            yield


OTHER_TOOLS = (
    "NSYS_PROFILING_SESSION_ID",  # Nsight Systems
    "NV_COMPUTE_PROFILER_PERFWORKS_DIR", "NV_NSIGHT_INJECTION_TRANSPORT_TYPE",  # Nsight Compute
    "NV_SANITIZER_INJECTION_PORT_RANGE_BEGIN",  # compute-sanitizer
    "NVPROF_ID", "CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH",  # nvprof, and any tool that is injected
    "ROCP_TOOL_LIB", "ROCP_TOOL_LIBRARIES", "HSA_TOOLS_LIB",  # rocprof, rocprofv3
    "KINETO_USE_DAEMON",  # lets other processes start the profiler at any time
)  # fmt: skip
"""Environment variables that show that another tool uses the device's profiler."""

_TEARS_DOWN_CUDA, _TEARS_DOWN_TORCH = (12, 6), (2, 12)
_STAYS = (
    "CUPTI stays attached after a profiler window, and the steps after the first one may be 10 to 20 % slower "
    "(since CUDA 12.6 TEARDOWN_CUPTI=1 in the environment detaches it)"
)


def other_tool() -> str | None:
    """The environment variable that shows another tool; None if there is none."""
    return next((name for name in OTHER_TOOLS if os.environ.get(name)), None)


class Kineto:
    """Torch's profiler of a device (Kineto on CUPTI or roctracer), through its raw functions.

    A process has only one such profiler, and starting it ends a trace that is under way. So ours never starts while
    another tool's or the script's is on, and stops before the script's starts. `torch.profiler` is not used, as it
    waits for the device when it stops and sets environment variables.

    `device`: the kind of device to record. Raises AttributeError or TypeError if this torch has no such profiler.
    """

    def __init__(self, torch: Any, device: str, capturing: Callable[[], bool]) -> None:
        self._prepare, self._enable, self._disable, self._enabled = profiler.of_device(torch)
        self._capturing = capturing
        self._script = torch.autograd
        self._device = getattr(torch.autograd.DeviceType, device)
        self._wanted = {profiler.activity(torch, device)}
        self._config = profiler.config(torch, "KINETO")
        self.warning = _STAYS if stays_attached(torch) else None
        self.theirs = False
        """Whether the script has prepared or started a profiler, in any thread, and not stopped it."""

    def why_not(self) -> str | None:
        """Why the profiler cannot be started now; None if it can."""
        if self._capturing():
            return "a graph was being captured"
        tool = other_tool()
        if tool is not None:
            return f"{tool} is set, so another tool uses the device's profiler"
        if self.theirs or self._enabled() or profiler.monitor() is not None:
            return "the script's own profiler was on"
        return None

    def start(self) -> None:
        """Starts recording the device's activities."""
        self._prepare(self._config, self._wanted)
        self._enable(self._config, self._wanted)

    def stop(self) -> Any:
        """Stops recording. Must be called in the thread that started it. Returns the argument for `activities`."""
        return self._disable()

    def activities(self, result: Any) -> list[Activity]:
        """The activities of the device, with times in unix time."""
        return [
            Activity(event.name(), event.start_ns(), event.start_ns() + event.duration_ns())
            for event in result.events()
            if event.device_type() == self._device and not _is_annotation(event)
        ]

    def watch(self, make_way: Callable[[], None]) -> Uninstall:
        """Observes when the script's profilers start and stop. `make_way` is called before one starts."""

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
    """Whether an event is a named range over the device's work, not work itself."""
    return hasattr(event, "is_user_annotation") and bool(event.is_user_annotation())


def stays_attached(torch: Any) -> bool:
    """Whether CUPTI stays attached after a window, which may slow down later steps (kineto#1264)."""
    if not torch.version.cuda:
        return False
    asked = os.environ.get("TEARDOWN_CUPTI")
    if asked is not None:
        return asked == "0"
    return (
        version_number(torch.version.cuda) < _TEARS_DOWN_CUDA or version_number(torch.__version__) < _TEARS_DOWN_TORCH
    )
