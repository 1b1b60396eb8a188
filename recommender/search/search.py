"""The fastest layout of a transformer on a number of equal machines, and all that were tried.

Rules come first, then memory, which is the same on all machines with so many GPUs, and only what fits is predicted.
Machines that are alike in all that a prediction uses share their answers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from ddlprof.recommender.architecture import Transformer
from ddlprof.recommender.compute.memory_fit import PERHAPS
from ddlprof.recommender.errors import PredictionError
from ddlprof.recommender.estimate import Estimate
from ddlprof.recommender.layout import RECOMPUTES, Layout
from ddlprof.recommender.layouts.links import fabric_of
from ddlprof.recommender.predictor import Predicts
from ddlprof.recommender.search.rules import Option, Space
from ddlprof.recommender.target import Machine, Target

MemoryOfLayout = Callable[[Layout, int, int, int], tuple[float, float]]
"""From layout, GPUs, sequences of a micro-batch and micro-batches to GiB of the rank that needs most: what is expected,
and what must be there at the least: a prediction may divide layers a little differently."""
MEMORY = "memory"
"""The rule that a layout fits."""
LAUNCHER = "launcher"
"""The rule that what launches the training has words for a layout."""


class Tried(NamedTuple):
    """A layout with its batch, and what became of it."""

    layout: Layout
    micro_batch: int
    micro_batches: int
    """Forward passes of a step in each data rank; 0: not known, as a rule left the layout out before."""
    reason: str = ""
    """The rule that left it out, or why it cannot be predicted; empty where it was predicted."""
    memory_gib: float | None = None
    """Of the rank that needs most; None: not looked at."""
    estimate: Estimate | None = None


@dataclass(frozen=True)
class SearchResult:
    """The layouts tried on a number of machines; None: none can be."""

    best: Tried | None
    tried: list[Tried]


class LayoutSearch:
    """Searches the layouts of one model with one global batch, on one machine after another."""

    def __init__(
        self,
        model: Transformer,
        global_batch: int,
        predictor: Predicts,
        memory: MemoryOfLayout,
        precision: str,
        optimizer: str | None = None,
        allows: Callable[[Layout], bool] | None = None,
    ) -> None:
        """`global_batch` in sequences; `precision` and `optimizer` as in `Target`; `allows` tells whether what launches
        the training has words for a layout, None: it has for all."""
        self._model = model
        self._global_batch = global_batch
        self._predictor = predictor
        self._memory = memory
        self._precision, self._optimizer = precision, optimizer
        self._allows = allows or (lambda layout: True)
        self._needed: dict[tuple[Layout, int, int, int], tuple[float, float]] = {}
        self._spaces: dict[tuple[int, int], tuple[Space, list[tuple[Option, str]]]] = {}
        self._variants: dict[tuple[Layout, str], list[Layout]] = {}
        self._found: dict[tuple[Machine, int, float], SearchResult] = {}

    def on(self, machine: Machine, placement: tuple[int, ...], usable_gib: float) -> SearchResult:
        """The layouts on machines with this placement, each GPU with so much memory (GiB) for the job."""
        key = (replace(machine, name="", vcpus=None, storage_gb_s=None, cpu_model=None), len(placement), usable_gib)
        if key not in self._found:
            self._found[key] = self._search(machine, placement, usable_gib)
        return self._found[key]

    def _search(self, machine: Machine, placement: tuple[int, ...], usable_gib: float) -> SearchResult:
        gpus, domain = sum(placement), fabric_of(machine, placement[0]).domain if machine.link == "nvlink" else 1
        if (gpus, domain) not in self._spaces:
            made = Space(self._model, gpus, domain, self._global_batch)
            self._spaces[gpus, domain] = made, list(made.options())
        space, options = self._spaces[gpus, domain]
        target = Target(machine.name, placement, precision=self._precision, optimizer=self._optimizer)
        tried: list[Tried] = []
        for option, rule in options:
            tried += [Tried(*option, rule)] if rule else self._fitting(option, target, space, usable_gib)
        best = min((each for each in tried if each.estimate), key=_step_s, default=None)
        return SearchResult(best, [each if each is best else _without_basis(each) for each in tried])

    def _fitting(self, option: Option, target: Target, space: Space, usable_gib: float) -> Iterator[Tried]:
        """The option with what data ranks may divide, each with the least recomputation that fits."""
        base, size, count = option
        for shard in space.shards(base):
            for layout in self._recomputing(base, shard):
                if not self._allows(layout):
                    yield Tried(layout, size, count, LAUNCHER)
                    continue
                expected_gib, needed_gib = self._memory_of(layout, space.gpus, size, count)
                one = Tried(layout, size, count, MEMORY, expected_gib)
                if needed_gib <= usable_gib:
                    one = self._predicted(one, target)
                yield one
                if one.reason != MEMORY:
                    if layout.recompute == RECOMPUTES[0]:
                        return
                    break

    def _recomputing(self, base: Layout, shard: str) -> list[Layout]:
        """The layout with what data ranks divide and more and more computed again; made once for all machines."""
        if (base, shard) not in self._variants:
            self._variants[base, shard] = [replace(base, shard=shard, recompute=each) for each in RECOMPUTES]
        return self._variants[base, shard]

    def _memory_of(self, layout: Layout, gpus: int, size: int, count: int) -> tuple[float, float]:
        key = (layout, gpus, size, count)
        if key not in self._needed:
            self._needed[key] = self._memory(layout, gpus, size, count)
        return self._needed[key]

    def _predicted(self, one: Tried, target: Target) -> Tried:
        asked = replace(target, layout=one.layout, batch_per_gpu=one.micro_batch, grad_accum=one.micro_batches)
        try:
            estimate = self._predictor.predict(asked)
        except PredictionError as error:
            return one._replace(reason=f"not predictable: {error}")
        if estimate.fits_memory is False or estimate.memory_verdict == PERHAPS:
            return one._replace(memory_gib=estimate.memory_gib)
        return one._replace(reason="", memory_gib=estimate.memory_gib or one.memory_gib, estimate=estimate)


def _step_s(one: Tried) -> float:
    return one.estimate.step_s if one.estimate else math.inf


def _without_basis(one: Tried) -> Tried:
    """Thousands of bases would fill the memory."""
    return one._replace(estimate=replace(one.estimate, basis=())) if one.estimate else one
