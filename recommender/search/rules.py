"""The layouts that are tried on a number of GPUs, and the rules that leave others out before anything is predicted.

All rules are in `RULES`, in the order in which they are applied. What is left out has the name of its rule.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from ddlprof.recommender.architecture import Transformer
from ddlprof.recommender.layout import Layout

MICRO_BATCHES = (1, 2, 4, 8)
"""The sequences of a micro-batch that are tried."""
_VIRTUAL = (1, 2, 4)
_MOST_TENSOR = 16
_UNEVEN = 9 / 8
"""The largest stage holds at most this times an even share of the layers."""
_CONTEXT_TOKENS = 8192
"""The fewest tokens of a sequence that one context rank keeps."""

RULES = {
    "powers of two": (
        "Tensor, pipeline, context and expert degrees are powers of two; a stage has 1, 2 or 4 parts; a micro-batch has"
        " 1, 2, 4 or 8 sequences."
    ),
    "tensor within NVLink": f"NVLink joins tensor ranks, in a machine or a rack; they are {_MOST_TENSOR} at most.",
    "context for long sequences": f"A context rank keeps at least {_CONTEXT_TOKENS:,} tokens of a sequence.",
    "divisible": (
        "Heads, widths, experts, tokens and GPUs are divided without a rest, and each part of a stage has a layer."
    ),
    "even stages": "The largest stage, or part of one, holds at most an eighth more layers than an even share.",
    "global batch": "The global batch is a whole number of micro-batches on each data rank.",
    "full pipeline": (
        "There are at least as many micro-batches as stages; where stages have several parts, a multiple of the stages."
    ),
    "optimizer states divided": "Where there are several data ranks, they divide the optimizer states (zero1).",
    "zero3 without a pipeline": (
        "Parameters are divided only where there is no pipeline, every micro-batch of which would gather them again."
    ),
    "launcher": "Where a launch file is asked for, the framework has words for all of the layout.",
    "memory": "The rank that needs most memory has it, by the prediction.",
    "less would do": (
        "The least recomputation that fits is taken, and parameters are divided only where it would fit in no other way"
        " without recomputation."
    ),
}
"""Each rule by its name, as a sentence."""


class Option(NamedTuple):
    """A layout with its batch, before it is known what data ranks divide and what is computed again."""

    layout: Layout
    micro_batch: int
    """Sequences of a forward pass."""
    micro_batches: int
    """Forward passes of a step in each data rank; 0: not known, as the layout is left out."""


@dataclass(frozen=True)
class Space:
    """The layouts of a model on a number of GPUs."""

    model: Transformer
    gpus: int
    domain: int
    """GPUs that NVLink joins, in a machine or a rack; 1: none."""
    global_batch: int
    """Sequences of an update."""

    def options(self) -> Iterator[tuple[Option, str]]:
        """Every layout, with the name of the rule that leaves it out, or nothing where it is to be tried."""
        for layout in self._layouts():
            rule = self._against(layout)
            if rule:
                yield Option(layout, 1, 0), rule
                continue
            for size in MICRO_BATCHES:
                count, rest = divmod(self.global_batch, size * layout.data_ranks(self.gpus))
                if rest or not count:
                    yield Option(layout, size, 0), "global batch"
                else:
                    yield Option(layout, size, count), _against_batch(layout, count)

    def shards(self, layout: Layout) -> tuple[str, ...]:
        """What data ranks may divide under a layout, the cheapest first."""
        if layout.data_ranks(self.gpus) * layout.context == 1:
            return ("none",)
        return ("zero1",) if layout.pipeline > 1 else ("zero1", "zero3")

    def _layouts(self) -> Iterator[Layout]:
        model = self.model
        for tensor in powers(min(max(self.domain, 1), _MOST_TENSOR)):
            for pipeline in powers(min(model.layers, self.gpus // tensor)):
                for context in powers(max(model.seq // _CONTEXT_TOKENS, 1)):
                    for expert in powers(max(model.experts, 1)):
                        for virtual in _VIRTUAL if pipeline > 1 else (1,):
                            yield Layout(tensor, pipeline, virtual, context, expert)

    def _against(self, layout: Layout) -> str:
        """The rule that leaves a layout out whatever its micro-batch; empty: none does."""
        if layout.problem(self.model, self.gpus):
            return "divisible"
        parts = layout.pipeline * layout.virtual
        largest = math.ceil(self.model.layers / parts)
        return "even stages" if largest * parts > _UNEVEN * self.model.layers else ""


def _against_batch(layout: Layout, micro_batches: int) -> str:
    if micro_batches < layout.pipeline or (layout.virtual > 1 and micro_batches % layout.pipeline):
        return "full pipeline"
    return ""


def powers(most: int) -> list[int]:
    """The powers of two up to `most`."""
    return [1 << power for power in range(most.bit_length())]
