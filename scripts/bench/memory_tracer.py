"""The memory of a step from a model that nobody runs: which tensors are alive when, on fake tensors."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ddlprof.model.operators import StepMemory, highest
from scripts.bench.memory_cases import Case


class Alive(TorchDispatchMode):
    """Counts the bytes of storages that were made under it and are not freed yet; those of gradients apart."""

    def __init__(self, known: set[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes, self.gradient_bytes = 0, 0
        self.points: list[tuple[float, float]] = []
        self._known = set(known)
        self._refs: dict[int, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                self._see(tensor.untyped_storage())
        self.points.append((float(self.gradient_bytes), float(self.bytes)))
        return out

    def _see(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self._known:
            return
        size = storage.nbytes()
        self._known.add(key)
        self.bytes += size
        self._refs[key] = [weakref.ref(storage, lambda _: self._free(key)), size, False]

    def _free(self, key: int) -> None:
        _, size, gradient = self._refs.pop(key)
        self._known.discard(key)
        self.bytes -= 0 if gradient else size
        self.gradient_bytes -= size if gradient else 0

    def is_gradient(self, tensor: torch.Tensor) -> None:
        """From now on the tensor's storage counts as a gradient."""
        entry = self._refs.get(tensor.untyped_storage()._cdata)
        if entry and not entry[2]:
            entry[2] = True
            self.bytes -= entry[1]
            self.gradient_bytes += entry[1]


def traced(case: Case, batch_size: int) -> StepMemory:
    """The memory of the job's step at that batch; what does not grow follows from half of it."""
    whole, half = _traced(case, batch_size), _traced(case, batch_size // 2)
    fixed = max(0.0, 2 * (half.saved_bytes or 0.0) - (whole.saved_bytes or 0.0))
    return replace(whole, saved_fixed_bytes=fixed)


def _traced(case: Case, batch_size: int) -> StepMemory:
    model, batch = case.build(), case.batch_of(batch_size)
    with FakeTensorMode(allow_non_fake_inputs=True) as fake:
        _make_fake(model, fake)
        batch = {name: fake.from_tensor(tensor) for name, tensor in batch.items()}
        kept = [*model.parameters(), *model.buffers(), *batch.values()]
        alive = Alive({tensor.untyped_storage()._cdata for tensor in kept})
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        for parameter in trained:
            parameter.register_post_accumulate_grad_hook(lambda p: alive.is_gradient(p.grad))
        with alive:
            with case.autocast():
                result = model(**batch)
            gc.collect()
            saved = alive.bytes
            result.loss.backward()
        return StepMemory(
            parameter_bytes=_bytes(kept[: -len(batch)]),
            trained_bytes=_bytes(trained),
            input_bytes=_bytes(list(batch.values())),
            saved_bytes=saved,
            largest_tensor_bytes=max(parameter.nbytes for parameter in trained),
            points=highest([*alive.points, (float(alive.gradient_bytes), float(alive.bytes))]),
        )


def _make_fake(model: torch.nn.Module, fake: FakeTensorMode) -> None:
    """Replaces parameters and buffers by fake ones; those that are shared stay shared."""
    made: dict[int, torch.Tensor] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                trained = parameter.requires_grad
                new = made.setdefault(id(parameter), fake.from_tensor(parameter.detach()))
                if not isinstance(new, torch.nn.Parameter):
                    new = made[id(parameter)] = torch.nn.Parameter(new, requires_grad=trained)
                module._parameters[name] = new
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = made.setdefault(id(buffer), fake.from_tensor(buffer))


def _bytes(tensors: Sequence[torch.Tensor]) -> int:
    return sum({t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}.values())
