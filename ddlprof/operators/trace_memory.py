"""The memory of one micro-batch from the storages of its fake tensors: when each was made and freed, and its size.

Time is counted in operators seen so far.
"""

from __future__ import annotations

import weakref
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ddlprof.model.operators import StepMemory
from ddlprof.torch_private import operators

_FEW = 4
"""A list of at most so many modules that contain lists themselves is one of stages, whose lists contain the blocks."""


@dataclass
class Storage:
    """One piece of memory. Views share it."""

    bytes: int
    born: int
    outside: bool
    """Whether it existed before: a parameter, a buffer, an input, a constant of the model."""
    weight: bool = False
    """Whether it is that of a parameter or a buffer."""
    gone: int | None = None
    cast_of: int | None = None
    """The number of the storage of which it is a copy in another type."""
    block: int | None = None
    """The number of the model's block in which it was made."""


class Storages:
    """Numbers storages in the order in which they appear. No number is used twice."""

    def __init__(self) -> None:
        self.now = 0
        self.block: int | None = None
        self.all: list[Storage] = []
        self._numbers: dict[int, tuple[int, Any]] = {}

    def number(self, tensor: Any, outside: bool = False, weight: bool = False) -> int:
        """The number of a tensor's storage. `outside` and `weight` are used if it is new."""
        storage = tensor.untyped_storage()
        known = self._numbers.get(id(storage))
        if known is not None and known[1]() is storage:
            return known[0]
        number, key = len(self.all), id(storage)
        size = 0 if tensor.numel() == 0 else int(storage.nbytes())
        self.all.append(Storage(size, self.now, outside, weight, block=self.block))
        self._numbers[key] = number, weakref.ref(storage, lambda _: self._ends(key, number))
        return number

    def _ends(self, key: int, number: int) -> None:
        self.all[number].gone = self.now
        if self._numbers.get(key, (None,))[0] == number:
            del self._numbers[key]

    def alive(self) -> list[int]:
        """The numbers of storages that exist now and are not from outside."""
        return [n for n, each in enumerate(self.all) if each.gone is None and not each.outside]

    def weight(self, number: int) -> int | None:
        """The number of the parameter or buffer that a storage is or is a copy of in another type; None: neither."""
        cast = self.all[number].cast_of
        number = number if cast is None else cast
        return number if self.all[number].weight else None

    def moments(self, gradients: Iterable[int] = ()) -> list[tuple[float, float]]:
        """After each operator, the bytes of `gradients` so far, and the bytes of all others not from outside."""
        kept = set(gradients)
        changes: defaultdict[int, list[int]] = defaultdict(lambda: [0, 0])
        for number, each in enumerate(self.all):
            if each.outside:
                continue
            changes[each.born][1] += each.bytes
            if number in kept:
                changes[each.born][1] -= each.bytes
                changes[each.born][0] += each.bytes
            elif each.gone is not None:  # operands still exist while the result is made
                changes[each.gone + 1][1] -= each.bytes
        made = rest = 0
        found = []
        for time in sorted(changes):
            made, rest = made + changes[time][0], rest + changes[time][1]
            found.append((float(made), float(rest)))
        return found


def blocks(model: Any) -> list[Any]:
    """The repeated modules that checkpointing would recompute one at a time, such as layers of a transformer.

    For a ResNet these are its residual blocks. Empty if the model has none.
    """
    found: list[Any] = []
    for group in _groups(model):
        inner = [list(_groups(part)) for part in group]
        staged = len(group) <= _FEW and all(inner)
        found += [block for groups in inner for each in groups for block in each] if staged else group
    return found


def _groups(part: Any) -> Iterator[list[Any]]:
    """The outermost lists of at least two modules of one class that have submodules and weights."""
    import torch

    if isinstance(part, (torch.nn.ModuleList, torch.nn.Sequential)):
        same: defaultdict[type, list[Any]] = defaultdict(list)
        for child in part:
            if any(True for _ in child.children()) and any(True for _ in child.parameters()):
                same[type(child)].append(child)
        repeated = [group for group in same.values() if len(group) > 1]
        if repeated:
            yield [child for group in repeated for child in group]
            return
    for child in part.children():
        yield from _groups(child)


class Blocks:
    """Notes during forward in which block each storage is made, and the inputs of each block."""

    def __init__(self, model: Any, storages: Storages) -> None:
        self._storages = storages
        self._handles: list[Any] = []
        self.inputs: set[int] = set()
        self.outputs: set[int] = set()
        self.blocks = blocks(model)
        for number, block in enumerate(self.blocks):
            self._handles.append(block.register_forward_pre_hook(self._begin(number), with_kwargs=True))
            self._handles.append(block.register_forward_hook(self._end, always_call=True))

    def _begin(self, number: int) -> Any:
        def begin(module: Any, args: Any, kwargs: Any) -> None:
            if self._storages.block is None:
                self._storages.block = number
                self.inputs.update(
                    self._storages.number(each)
                    for each in operators.leaves((args, kwargs))
                    if hasattr(each, "untyped_storage") and each.is_floating_point()
                )

        return begin

    def _end(self, module: Any, args: Any, output: Any) -> None:
        self._storages.block = None
        self.outputs.update(
            self._storages.number(each) for each in operators.leaves(output) if hasattr(each, "untyped_storage")
        )

    def remove(self) -> None:
        """Removes the hooks from the model."""
        for handle in self._handles:
            handle.remove()


def step_memory(
    model: Any, storages: Storages, saved: list[int], watched: Blocks, inputs: list[Any], gradients: set[int]
) -> StepMemory:
    """The memory of a micro-batch. `saved`: storages alive at the end of forward. `gradients`: those of the parameters.

    The points are those after all operators. Which of them grow with the batch is found by a second trace.
    """
    each = {id(p): p for p in [*model.parameters(), *model.buffers()]}.values()
    sizes = [storages.all[number] for number in saved]
    saved_bytes = sum(storage.bytes for storage in sizes)
    in_blocks: Counter[int] = Counter()
    crossing, kept = watched.inputs | watched.outputs, set(saved)
    for number, storage in zip(saved, sizes, strict=True):
        if storage.block is not None and number not in crossing:
            in_blocks[storage.block] += storage.bytes
    outside = [storages.all[number].bytes for number in watched.inputs if number not in kept
               and not storages.all[number].outside]  # fmt: skip
    casts = [s.bytes for s in sizes if s.cast_of is not None and storages.all[s.cast_of].weight]
    moments = storages.moments(gradients)
    trained = [p.numel() * p.element_size() for p in model.parameters() if p.requires_grad]
    weights = [sum(p.numel() * p.element_size() for p in block.parameters()) for block in watched.blocks]
    return StepMemory(
        parameter_bytes=float(sum(tensor.numel() * tensor.element_size() for tensor in each)),
        trained_bytes=float(sum(trained)),
        saved_bytes=float(saved_bytes),
        saved_cast_bytes=float(sum(casts)),
        temporary_bytes=max(0.0, max((rest for _, rest in moments), default=0.0) - saved_bytes),
        layer_bytes=float(max(in_blocks.values())) if in_blocks else None,
        kept_bytes=float(saved_bytes - sum(in_blocks.values()) + sum(outside)) if in_blocks else None,
        input_bytes=float(sum(tensor.numel() * tensor.element_size() for tensor in inputs)),
        points=tuple(moments),
        largest_tensor_bytes=float(max(trained, default=0)) or None,
        largest_block_bytes=float(max(weights, default=0)) or None,
    )
