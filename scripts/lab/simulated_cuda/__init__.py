"""A simulated CUDA for tests and rehearsals on machines without a GPU.

`install()` makes this process's CPU build of torch look like a CUDA build with GPUs: `torch.cuda` is torch's own Python
code, over simulated streams, events and graphs (`device`, `classes`); tensors on `cuda` say that they are there, and
are computed on the host (`tensors`). Nothing here tells how fast a GPU is.

`simulated()` is for tests. It lasts as long as a `with` statement, and its clock is virtual
(`scripts.lab.virtual_clock`): host and devices pass time, nobody sleeps, and a test may compare nanoseconds. After
`install()`, for whole processes, the clock is the host's.

What is not simulated: compilation for the device, NCCL's own calls, an end of memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from scripts.lab.simulated_cuda.classes import EventBase, StreamBase
from scripts.lab.simulated_cuda.device import Activity, Graph, Machine
from scripts.lab.virtual_clock import HostClock, installed

__all__ = ["Activity", "Machine", "install", "simulated"]

_NEEDS = "the simulated device needs a CPU build of torch"
_GHZ = 1
_EXACT = {"launch_ns": 5_000, "resolution_ns": 1}
_kept: list[Any] = []
"""What `install` would undo: the library of operators lives as long as somebody holds it."""


@contextlib.contextmanager
def simulated(**settings: Any) -> Iterator[Machine]:
    """Devices for as long as this lasts, and a virtual clock; `settings` are those of `Machine`.

    A test on a CUDA build of torch is skipped: classes written in C cannot be replaced.
    """
    import pytest
    import torch

    if torch.version.cuda is not None:
        pytest.skip(_NEEDS)
    undo: list[Any] = []
    with installed() as clock:
        try:
            yield _install(Machine(clock, **{**_EXACT, **settings}), undo)
        finally:
            while undo:
                undo.pop()()


def install(**settings: Any) -> Machine:
    """Devices until this process ends. Raises RuntimeError on a CUDA build of torch."""
    import torch

    if torch.version.cuda is not None:
        raise RuntimeError(_NEEDS)
    return _install(Machine(HostClock(), **settings), _kept)


def _install(machine: Machine, undo: list[Any]) -> Machine:
    import torch

    from scripts.lab.simulated_cuda.engine import Engine
    from scripts.lab.simulated_cuda.tensors import CudaTensor

    def put(owner: Any, name: str, value: Any) -> None:
        missing = object()
        old = vars(owner).get(name, missing)
        setattr(owner, name, value)
        undo.append(lambda: delattr(owner, name) if old is missing else setattr(owner, name, old))

    for part in (StreamBase, EventBase, Graph, CudaTensor):
        part.machine = machine
    for kind, base in (
        (torch.cuda.Stream, StreamBase),
        (torch.cuda.Event, EventBase),
        (torch.cuda.CUDAGraph, Graph),
    ):
        kind.__bases__ = (base,)
    put(torch.cuda.graph, "default_capture_stream", None)
    _put_library(put, machine)
    _put_driver(put, machine, torch)
    _put_graphs(put, machine, torch)
    _put_python(put, machine, torch)
    _put_tensors(put, undo, torch)
    engine = Engine(machine, torch.autograd.Variable._execution_engine)
    put(torch.autograd.Variable, "_execution_engine", engine)
    undo.append(engine.close)
    if torch.distributed.is_available():
        _put_collectives(put, machine, torch)
    return machine


def _put_library(put: Any, machine: Machine) -> None:
    """The driver's library, as far as C code calls it that is not torch's."""

    def exchange(mode: Any) -> int:
        number = mode._obj  # what `ctypes.byref` points to
        number.value = machine.exchange_capture_mode(number.value)
        return 0

    def library(name: Any = None, *args: Any, **kwargs: Any) -> Any:
        if name == "libcuda.so.1":
            return SimpleNamespace(cuThreadExchangeStreamCaptureMode=exchange)
        return load(name, *args, **kwargs)

    load = ctypes.CDLL
    put(ctypes, "CDLL", library)


def _put_graphs(put: Any, machine: Machine, torch: Any) -> None:
    """`torch.accelerator.Graph`, where torch has it: torch's own Python code, run once more over the simulation."""
    name = "torch.accelerator.graphs"
    if name not in sys.modules:
        return
    put(torch._C, "_accelerator_isAllocatorInitialized", lambda: False)
    put(torch._C, "_accelerator_emptyHostCache", lambda: None)
    put(torch._C, "_accelerator_getDeviceIndex", lambda: machine.device)
    put(torch._C, "_accelerator_synchronizeDevice", machine.await_device)
    put(torch._C, "_acceleratorGraph", Graph)
    spec: Any = importlib.util.find_spec(name)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    put(torch.accelerator, "Graph", module.Graph)


def _put_driver(put: Any, machine: Machine, torch: Any) -> None:
    """The functions of C that torch.cuda calls."""

    def numbers(stream: Any) -> tuple[int, int, int]:
        return (stream.ident, stream.device, 1)

    def maybe_exchange(index: int) -> int:
        before = machine.device
        if index >= 0:
            machine.device = index
        return before

    def exchange(index: int) -> int:
        before = maybe_exchange(index)
        if before != machine.device:
            machine.touch(machine.device)
        return before

    def set_device(index: int) -> None:
        machine.device = index
        machine.touch(index)

    def set_stream(stream_id: int, device_index: int, device_type: int = 1) -> None:
        exchange(device_index)
        machine.make_current(machine.stream(device_index, stream_id))

    def capturing() -> bool:
        return machine.current().graph is not None

    functions = {
        "getDeviceCount": lambda: machine.devices,
        "getDevice": lambda: machine.device,
        "setDevice": set_device,
        "exchangeDevice": exchange,
        "maybeExchangeDevice": maybe_exchange,
        "getCurrentStream": lambda index: numbers(machine.current(index)),
        "getCurrentRawStream": lambda index: machine.current(index).ident,
        "getDefaultStream": lambda index: numbers(machine.stream(index, 0)),
        "setStream": set_stream,
        "synchronize": lambda: machine.await_device(machine.device),
        "isCurrentStreamCapturing": capturing,
        "sleep": lambda cycles: machine.launch("sleep", cycles // _GHZ) and None,
        "emptyCache": lambda: None,
        "memoryStats": machine.memory.stats,
        "resetPeakMemoryStats": machine.memory.reset_peak,
        "getCompiledVersion": lambda: 12060,
    }
    put(torch.cuda, "_exchange_device", exchange)
    put(torch.cuda, "_maybe_exchange_device", maybe_exchange)
    for name, function in functions.items():
        put(torch._C, f"_cuda_{name}", function)
    put(torch._C, "_host_emptyCache", lambda: None)
    put(torch.cuda.graphs, "_cuda_isCurrentStreamCapturing", capturing)
    put(torch.cuda.graphs, "_graph_pool_handle", lambda: (0, 1))


def _put_python(put: Any, machine: Machine, torch: Any) -> None:
    """What asks a CUDA build for facts."""

    def initialize() -> None:
        torch.cuda._initialized = True

    def properties(device: Any = None) -> Any:
        index = torch.cuda._utils._get_device_index(device, optional=True)
        return SimpleNamespace(
            name=machine.names, uuid=f"00000000-0000-0000-0000-{index:012}", total_memory=2**34, major=9, minor=0
        )

    put(torch.version, "cuda", "12.6")
    if hasattr(torch, "accelerator"):
        put(torch.accelerator, "current_accelerator", lambda check_available=False: torch.device("cuda"))
        put(torch.accelerator, "current_stream", lambda device=None: torch.cuda.current_stream(device))
    put(torch.backends.cuda, "is_built", lambda: True)
    put(torch.cuda, "_initialized", False)
    put(torch.cuda, "_lazy_init", initialize)
    put(torch.cuda.random, "_lazy_init", initialize)
    put(torch.cuda, "is_available", lambda: True)
    put(torch.cuda, "default_generators", tuple(torch.Generator() for _ in range(machine.devices)))
    put(torch.cuda, "device_count", lambda: machine.devices)
    put(torch.cuda, "get_device_properties", properties)
    put(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    put(torch.cuda, "is_bf16_supported", lambda *_: True)
    put(torch.cuda, "mem_get_info", lambda device=None: (2**33, 2**34))


def _put_tensors(put: Any, undo: list[Any], torch: Any) -> None:
    """Memory on `cuda`, and what makes tensors without asking the dispatcher for memory there."""
    from scripts.lab.simulated_cuda.tensors import CudaTensor

    def index(device: Any) -> int:
        torch.cuda._lazy_init()  # C++ does it once a process, for the first simulation only
        found = torch.device(device).index
        return torch._C._cuda_getDevice() if found is None else int(found)

    def empty(size: Any, *, dtype: Any = None, device: Any = None, memory_format: Any = None, **_: Any) -> Any:
        kept = memory_format or torch.contiguous_format
        return CudaTensor.of(torch.empty(size, dtype=dtype, memory_format=kept), index(device))

    def empty_strided(size: Any, stride: Any, *, dtype: Any = None, device: Any = None, **_: Any) -> Any:
        return CudaTensor.of(torch.empty_strided(size, stride, dtype=dtype), index(device))

    library = torch.library.Library("aten", "IMPL")
    library.impl("empty.memory_format", empty, "CUDA")
    library.impl("empty_strided", empty_strided, "CUDA")
    undo.append(library._destroy)
    original = torch.tensor

    def tensor(data: Any, *, device: Any = None, **kwargs: Any) -> Any:
        if device is None or torch.device(device).type != "cuda":
            return original(data, device=device, **kwargs)
        return original(data, **kwargs).to(device)

    def numbered(device: Any) -> Any:
        named = isinstance(device, (str, torch.device)) and torch.device(device).type == "cuda"
        return torch.device("cuda", index(device)) if named else device

    def to(this: Any, *args: Any, **kwargs: Any) -> Any:
        if "device" in kwargs:
            kwargs["device"] = numbered(kwargs["device"])
        return torch._C.TensorBase.to(this, *map(numbered, args), **kwargs)

    def cuda(this: Any, device: Any = None, non_blocking: bool = False, **_: Any) -> Any:
        return to(this, torch.device("cuda", index("cuda" if device is None else device)), non_blocking=non_blocking)

    def pin_memory(this: Any, *_: Any) -> Any:
        pinned = this.clone()
        pinned.pinned = True
        return pinned

    put(torch, "tensor", tensor)
    put(torch.Tensor, "to", to)
    put(torch.Tensor, "cuda", cuda)
    put(torch.Tensor, "pin_memory", pin_memory)
    put(torch.Tensor, "is_pinned", lambda this, *_: getattr(this, "pinned", False))
    put(torch.__future__, "_overwrite_module_params_on_conversion", True)


def _put_collectives(put: Any, machine: Machine, torch: Any) -> None:
    """Waiting for a collective of a tensor on a device makes the current stream wait, too."""

    def waiting(original: Any) -> Any:
        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(work, *args, **kwargs)
            machine.await_collectives(next((until for known, until in machine.works if known is work), None))
            return result

        return wait

    work = torch._C._distributed_c10d.Work
    put(work, "wait", waiting(work.wait))
    put(torch._C.Future, "wait", waiting(torch._C.Future.wait))
