"""CUDA devices, and ROCm's, which torch shows under the same names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from operator import attrgetter
from typing import Any

from ddlprof.collect.accelerator.capture_mode import CaptureMode
from ddlprof.collect.accelerator.kineto import Kineto
from ddlprof.collect.accelerator.nvml import NvmlCounters
from ddlprof.collect.accelerator.protocol import Accelerator, Counters, DeviceProfiler, Driver
from ddlprof.torch_private import profiler


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
        owner = profiler.owner_of_synchronize(torch)  # of torch.cuda.synchronize, which may be imported
        if owner is not None:
            self.device_wait = owner, profiler.SYNCHRONIZE
        self.holds = attrgetter("is_cuda")

    @staticmethod
    def is_built(torch: Any) -> bool:
        """See `Accelerator`."""
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
        """See `Accelerator`; NVML knows NVIDIA's only."""
        return NvmlCounters(self._uuid) if self._torch.version.cuda else None

    def _uuid(self) -> str | None:
        """UUID of the device on which this process holds most memory; None while it holds none.

        Not the current device: that is one per thread, and this is not the training thread. UUIDs are the same for
        torch and NVML, whatever CUDA_VISIBLE_DEVICES hides or reorders.
        """
        if not self.in_use():
            return None
        used = {index: self._cuda.memory_reserved(index) for index in range(self._cuda.device_count())}
        device = max(used, key=lambda index: used[index])
        if used[device] == 0:
            return None
        return str(self._cuda.get_device_properties(device).uuid)

    def peak_allocated_bytes(self, device: Any = None) -> int | None:
        """See `Accelerator`."""
        return self._peak(device, "allocated_bytes")

    def peak_reserved_bytes(self, device: Any = None) -> int | None:
        """See `Accelerator`."""
        return self._peak(device, "reserved_bytes")

    def _peak(self, device: Any, name: str) -> int | None:
        """A peak of the allocator; None where the allocator keeps no marks."""
        stats = self._cuda.memory_stats_as_nested_dict(device) if self.in_use() else {}
        return int(stats[name]["all"]["peak"]) if name in stats else None


class CudaDriver:
    """The driver of one device."""

    def __init__(self, torch: Any, device: Any) -> None:
        self._cuda = torch.cuda
        self._capture_mode = CaptureMode(torch)
        self._record: Callable[[Any, Any], None] = torch.cuda.Event.record  # of the class: no hook of ours sees it
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
