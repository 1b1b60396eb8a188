"""Follows what DeepSpeed's ZeRO-3 gathers through torch's allocator, and prints what stays reserved for it.

    python -m scripts.fit.gathers

`gathered_bytes` of the recommender is held against it; nothing is measured. Decoders are checkpointed, with adapters
of rank 64 on all linear layers and without. What is done to parameters is that of `partitioned_param_coordinator.py`
and `partition_parameters.py` of DeepSpeed 0.12: modules fetch and release their own parameters, the first pass is
recorded, later ones fetch ahead and keep what is used again soon, and groups come in a flat buffer, out of which they
are copied. Blocks are those of `c10/cuda/CUDACachingAllocator.cpp`: the best one that fits, split, and joined again.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import fmean

from ddlprof.recommender.compute.deepspeed import LIVE_ELEMENTS, gathered_bytes

MB, GIB = 2**20, 2**30
DECODERS = {
    "Qwen 1.8B": (24, 2048, 5504, 151936), "Qwen 7B": (32, 4096, 11008, 151936),
    "Qwen 14B": (40, 5120, 13696, 152064), "Qwen 72B": (80, 8192, 24576, 152064),
    "Llama 2 7B": (32, 4096, 11008, 32000), "Llama 2 13B": (40, 5120, 13824, 32000),
    "Llama 2 70B": (80, 8192, 28672, 32000), "Llama 3.1 8B": (32, 4096, 14336, 128256),
    "Llama 3.1 70B": (80, 8192, 28672, 128256), "Gemma 7B": (28, 3072, 24576, 256000),
}  # fmt: skip
"""Layers, width, inner width and vocabulary. Queries, keys and values are one product of all heads, gates another."""
_RANK, _GPUS, _PASSES = 64, 4, 3
_PERSISTENT = 10
"""Parameters of fewer elements than so many widths are never given back, as transformers sets it."""
_WAITS = 3
"""The fetches after which what was released is free: the host is so far ahead (`__max_ongoing_fetch_events`)."""


@dataclass(eq=False)
class Block:
    """A part of a segment of the allocator; `before` and `after`: its neighbours."""

    size: int
    before: Block | None = None
    after: Block | None = None
    used: bool = False


class Allocator:
    """One stream's large blocks."""

    def __init__(self) -> None:
        self.free: list[Block] = []
        self.reserved = 0

    def take(self, size: int) -> Block:
        size = math.ceil(size / 512) * 512
        block = min((each for each in self.free if each.size >= size), key=lambda each: each.size, default=None)
        if block is None:
            block = Block(20 * MB if size < 10 * MB else math.ceil(size / (2 * MB)) * 2 * MB)
            self.reserved += block.size
        else:
            self.free.remove(block)
        if block.size - size > MB:
            rest = Block(block.size - size, block, block.after)
            if block.after:
                block.after.before = rest
            block.after, block.size = rest, size
            self.free.append(rest)
        block.used = True
        return block

    def give(self, block: Block) -> None:
        block.used = False
        for neighbour in (block.after, block.before):
            if neighbour and not neighbour.used:
                self.free.remove(neighbour)
                first, second = (block, neighbour) if neighbour is block.after else (neighbour, block)
                first.size, first.after = first.size + second.size, second.after
                if second.after:
                    second.after.before = first
                block = first
        self.free.append(block)


@dataclass(eq=False)
class Parameter:
    """`available`: whether it is there in full; `group`: those that it is on its way with, into `flat`."""

    elements: int
    persistent: bool
    available: bool
    group: list[Parameter] | None = None
    flat: Block | None = None
    block: Block | None = None


@dataclass(frozen=True)
class Module:
    """A module with its parameters and the modules inside of it, which run before it gives its own back."""

    own: tuple[Parameter, ...]
    inside: tuple[Module, ...] = ()

    def events(self, backward: bool = False) -> Iterator[tuple[bool, Module]]:
        """Pairs of whether parameters are fetched, or else given back, and whose."""
        yield True, self
        for module in reversed(self.inside) if backward else self.inside:
            yield from module.events(backward)
        yield False, self


def micro_batch(decoder: tuple[int, int, int, int], adapters: bool) -> list[tuple[bool, Module]]:
    """The events of a forward and a backward pass, whose blocks are computed again."""
    layers, width, inner, vocabulary = decoder

    def module(*sizes: int) -> Module:
        return Module(tuple(Parameter(size, *2 * (size < _PERSISTENT * width,)) for size in sizes))

    def linear(narrow: int, wide: int) -> Module:
        inside = (module(narrow * _RANK), module(wide * _RANK)) if adapters else ()
        return Module(module(narrow * wide, wide).own, inside)

    def block() -> list[Module]:
        attention = [module(width), linear(width, 3 * width), linear(width, width)]
        return [*attention, module(width), linear(width, inner), linear(width, inner), linear(inner, width)]

    first, blocks = module(vocabulary * width), [block() for _ in range(layers)]
    last = [module(width), module(vocabulary * width)]
    forward = [first, *(each for modules in blocks for each in modules), *last]
    events = [event for each in forward for event in each.events()]
    events += [event for each in reversed(last) for event in each.events(True)]
    for modules in reversed(blocks):
        events += [event for each in modules for event in each.events()]
        events += [event for each in reversed(modules) for event in each.events(True)]
    return events


@dataclass
class Coordinator:
    """Fetches and gives back the parameters of the modules of a micro-batch."""

    events: list[tuple[bool, Module]]
    ahead: float
    """The elements that are fetched ahead (`stage3_prefetch_bucket_size`)."""
    memory: Allocator = field(default_factory=Allocator)
    gathered: int = 0
    waits: int = 0
    released: deque[tuple[int, Block]] = field(default_factory=deque)

    def run(self) -> int:
        """The bytes that stay reserved after some micro-batches."""
        fetched = [module for fetch, module in self.events if fetch]
        for number in range(_PASSES):
            # The place in the order of modules at which each parameter was last looked for ahead of its use.
            queue = deque((parameter, at) for at, module in enumerate(fetched) for parameter in module.own)
            sought: dict[Parameter, int] = {}
            at = 0
            for fetch, module in self.events:
                if fetch:
                    self._gather(list(module.own))
                    for parameter in module.own:
                        self._wait(parameter)
                    if number:
                        self._look_ahead(queue, sought, module, at)
                    at += 1
                else:
                    soon = self._used_soon(fetched[at:]) if number else set()
                    for parameter in module.own:
                        kept = parameter.persistent or parameter in soon or sought.get(parameter, -1) >= at
                        if not (number and kept):  # the first pass gives back what persists, too
                            self._release(parameter)
        return self.memory.reserved

    def _look_ahead(
        self, queue: deque[tuple[Parameter, int]], sought: dict[Parameter, int], module: Module, at: int
    ) -> None:
        while queue and queue[0][1] <= at:
            parameter, place = queue.popleft()
            sought[parameter] = place
        most, found = min(LIVE_ELEMENTS - self.gathered, self.ahead), list[Parameter]()
        while queue and sum(each.elements for each in found) < most:
            parameter, place = queue.popleft()
            sought[parameter] = place
            if not (parameter.available or parameter.group or parameter in found):
                found.append(parameter)
        self._gather(found)

    @staticmethod
    def _used_soon(modules: list[Module]) -> set[Parameter]:
        soon, elements = set[Parameter](), 0
        for module in modules:
            if elements >= LIVE_ELEMENTS:  # stage3_max_reuse_distance
                break
            soon.update(module.own)
            elements += sum(parameter.elements for parameter in module.own)
        return soon

    def _gather(self, parameters: list[Parameter]) -> None:
        group = [each for each in parameters if not (each.available or each.group)]
        if not group:
            return
        self.gathered += sum(each.elements for each in group)
        flat = self.memory.take(2 * sum(math.ceil(each.elements / _GPUS) * _GPUS for each in group))
        for each in group:
            each.group, each.flat = group, flat

    def _wait(self, parameter: Parameter) -> None:
        group, flat = parameter.group, parameter.flat
        if group is None or flat is None:
            return
        self.waits += 1
        while self.released and self.released[0][0] <= self.waits - _WAITS:
            self.memory.give(self.released.popleft()[1])
        for each in group:
            each.block = flat if len(group) == 1 else self.memory.take(2 * each.elements)
            each.available, each.group, each.flat = True, None, None
        if len(group) > 1:
            self.memory.give(flat)

    def _release(self, parameter: Parameter) -> None:
        if parameter.available:
            if parameter.block:
                self.released.append((self.waits, parameter.block))
            self.gathered -= parameter.elements
            parameter.available, parameter.block = False, None


def main() -> None:
    errors = []
    print("| decoder | adapters | fetched ahead | followed GiB | taken for GiB | |\n|---|---|---:|---:|---:|---:|")
    for name, (layers, width, inner, vocabulary) in DECODERS.items():
        largest = 2 * width * max(vocabulary, inner, 3 * width)
        whole = 2 * (layers * (4 * width**2 + 3 * width * inner) + 2 * vocabulary * width)
        taken = gathered_bytes(2, whole, largest, _GPUS)[1]
        for adapters in (True, False):
            for ahead in (0.9 * width**2, 5e7):
                found = Coordinator(micro_batch(DECODERS[name], adapters), ahead).run()
                errors.append(taken / found - 1)
                cells = (name, "yes" if adapters else "no", f"{ahead:.1e}", f"{found / GIB:.2f}", f"{taken / GIB:.2f}")
                print(f"| {' | '.join(cells)} | {errors[-1]:+.0%} |")
    print(f"\nmean of absolute errors {fmean(map(abs, errors)):.1%}, {min(errors):+.0%} to {max(errors):+.0%}")


if __name__ == "__main__":
    main()
