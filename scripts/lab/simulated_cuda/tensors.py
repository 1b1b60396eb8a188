"""Tensors that say they are on a GPU. Their numbers lie in the host's memory and operators compute them there, at
once; the simulated device's stream gets a kernel of some microseconds for each.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_any, tree_leaves, tree_map

from scripts.lab.simulated_cuda.device import Machine

if torch.distributed.is_available():
    from torch.distributed import ProcessGroup, Work

KERNEL_NS = 5_000
BYTES_PER_S = 2e12
HOST_BYTES_PER_S = 20e9
"""The speed of copies between host and device."""
_NO_KERNEL = ("empty", "_local_scalar_dense", "is_", "sym_", "_version")


class CudaTensor(torch.Tensor):
    """On the simulated device `ordinal`."""

    machine: Machine
    ordinal: int

    @staticmethod
    def of(data: torch.Tensor, index: int) -> CudaTensor:
        """On a device, with the memory of a tensor of the host."""
        tensor = torch.Tensor._make_subclass(CudaTensor, data)
        tensor.ordinal = index
        CudaTensor.machine.memory.hold(tensor, index)
        return tensor

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """Not that of its memory."""
        return torch.device("cuda", getattr(self, "ordinal", 0))

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        """What a tensor on a GPU says."""
        return True

    @property
    def is_cpu(self) -> bool:  # type: ignore[override]
        """What a tensor on a GPU says."""
        return False

    def get_device(self) -> int:
        """The number of its device."""
        return self.ordinal

    def cpu(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """A copy on the host, which waits for the device."""
        return _to_host(self, self.machine)

    def numpy(self, *args: Any, **kwargs: Any) -> Any:
        """Refuses, as a tensor on a GPU does."""
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first.")

    def tolist(self) -> Any:
        """Its numbers, for which the host waits."""
        return self.cpu().tolist()

    def cuda(self, device: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Itself, or a copy on another device."""
        return self.to(torch.device("cuda", self.machine.device if device is None else torch.device(device).index or 0))

    def to(self, *args: Any, **kwargs: Any) -> Any:
        """Moves to a device or a type, or to those of another tensor."""
        kwargs.pop("non_blocking", None)
        where, rest = kwargs.pop("device", None), []
        for value in args:
            if isinstance(value, (str, torch.device)):
                where = value
            elif isinstance(value, torch.Tensor):
                where, rest = value.device, [value.dtype]
            elif isinstance(value, int) and not isinstance(value, bool):
                where = torch.device("cuda", value)
            elif not isinstance(value, bool):
                rest.append(value)
        converted: Any = super().to(*rest, **kwargs) if rest or kwargs else self  # type: ignore[call-overload]
        target = torch.device(where) if where is not None else self.device
        if target.type == "cpu":
            return _to_host(converted, self.machine)
        if target.type == "cuda" and target.index not in (None, self.ordinal):
            self.machine.launch("Memcpy PtoP", _copy_ns(self), self.machine.current(self.ordinal))
            with torch._C._DisableTorchDispatch():
                return CudaTensor.of(torch.Tensor.clone(converted), target.index)
        return converted

    def record_stream(self, stream: Any) -> None:
        """Nothing is freed early here."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Computes on the host; the device is kept busy."""
        kwargs = dict(kwargs or {})
        machine, index = cls.machine, _index((args, kwargs))
        if "device" in kwargs and kwargs["device"] is not None:
            kwargs["device"] = "cpu"
        until = _keep_busy(machine, index, func, args, kwargs)
        graph = machine.current(index).graph
        if graph is not None and not _is_view(func) and not func._schema.name.startswith("c10d::"):
            return _captured(graph, func, args, kwargs, index)
        with torch._C._DisableTorchDispatch():
            result = func(*args, **kwargs)
        if func._schema.name.startswith("c10d::"):
            boxed = result[-1] if isinstance(result, tuple) else result
            if isinstance(boxed, torch.ScriptObject):
                machine.works.append((Work.unbox(boxed), until))
            return result
        if func._schema.name == "aten::_local_scalar_dense":
            return result
        return tree_map(lambda value: _on_device(value, index), result)


def _captured(graph: Any, func: Any, args: Any, kwargs: Any, index: int) -> Any:
    """What a capture gives: tensors that have no numbers before the graph is replayed, and new ones each time."""
    schema = func._schema
    plain: Any = None
    if not schema.is_mutable:
        with torch._C._DisableTorchDispatch():  # of copies: batch_norm writes and does not say so
            plain = func(*tree_map(_copied, args), **tree_map(_copied, kwargs))
        for each in tree_leaves(plain):
            if isinstance(each, torch.Tensor) and each.is_floating_point():
                each.fill_(float("nan"))

    def again() -> None:
        with torch._C._DisableTorchDispatch(), torch.no_grad():
            found = func(*args, **kwargs)
            for mine, new in zip(tree_leaves(plain), tree_leaves(found), strict=plain is not None):
                if isinstance(mine, torch.Tensor):
                    mine.copy_(new)

    graph.calls.append(again)
    if schema.is_mutable:  # it returns what it writes to
        written = [n for n, each in enumerate(schema.arguments) if each.alias_info and each.alias_info.is_write]
        return args[written[0]] if schema.returns and written[0] < len(args) else None
    return tree_map(lambda value: _on_device(value, index), plain)


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _on_device(value: Any, index: int) -> Any:
    return CudaTensor.of(value, index) if type(value) is torch.Tensor else value


def _index(values: Any) -> int:
    found: list[int] = []

    def look(value: Any) -> bool:
        if isinstance(value, CudaTensor):
            found.append(getattr(value, "ordinal", 0))
        return bool(found)

    tree_any(look, values)
    return found[0] if found else 0


def _keep_busy(machine: Machine, index: int, func: Any, args: Any, kwargs: Any) -> int:
    """When a collective will be over; 0 for all else."""
    name = func._schema.name
    if name.startswith("c10d::"):
        given = {argument.name: value for argument, value in zip(func._schema.arguments, args, strict=False)} | kwargs
        group = ProcessGroup.unbox(given["process_group"]).group_name
        return machine.launch_collective(name, index, group, not given.get("async_op", True))
    if name == "aten::_local_scalar_dense":
        machine.await_stream(machine.current(index))
    elif name == "aten::copy_" and type(args[1]) is not CudaTensor:
        _copy_from_host(machine, index, args[1], kwargs.get("non_blocking", len(args) > 2 and args[2]))
    elif name == "aten::copy_" and type(args[0]) is not CudaTensor:
        machine.launch("Memcpy DtoH", _copy_ns(args[1]), machine.current(index))
        machine.await_stream(machine.current(index))
    elif not _is_view(func) and not name.removeprefix("aten::").startswith(_NO_KERNEL):
        size = sum(value.nbytes for value in args if isinstance(value, torch.Tensor))
        machine.launch(name, KERNEL_NS + round(size / BYTES_PER_S * 1e9), machine.current(index))
    return 0


def _is_view(func: Any) -> bool:
    returns = func._schema.returns
    return bool(returns) and all(r.alias_info is not None and not r.alias_info.is_write for r in returns)


def _copy_ns(tensor: torch.Tensor) -> int:
    return KERNEL_NS + round(tensor.nbytes / HOST_BYTES_PER_S * 1e9)


def _copy_from_host(machine: Machine, index: int, source: torch.Tensor, non_blocking: bool) -> None:
    stream = machine.current(index)
    machine.launch("Memcpy HtoD", _copy_ns(source), stream)
    if stream.graph is None and not (non_blocking and getattr(source, "pinned", False)):
        machine.await_stream(stream)


def _to_host(tensor: torch.Tensor, machine: Machine) -> torch.Tensor:
    stream = machine.current(_index([tensor]))
    machine.launch("Memcpy DtoH", _copy_ns(tensor), stream)
    machine.await_stream(stream)
    with torch._C._DisableTorchDispatch():
        plain: torch.Tensor = torch.Tensor.clone(tensor).as_subclass(torch.Tensor)
    return plain
