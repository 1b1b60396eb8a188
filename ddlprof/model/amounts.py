"""How much a rank's model got in a step: the record of some steps, from which ranks with uneven work are told."""

from __future__ import annotations

from dataclasses import dataclass

from ddlprof.model.annotations import Shared

COUNTED_UPDATE = 1
"""The number of updates before the step whose operations are counted."""


@dataclass(frozen=True, slots=True)
class BatchAmount:
    """What the outermost forwards of one step got. The samples may be of any length."""

    time_ns: Shared[int]
    """A moment in the step, relative to the rank's origin."""
    update: Shared[int]
    """The number of updates before it."""
    samples: Shared[int]
    values: Shared[int]
    """The numbers in the first tensor of each forward: of text, its tokens, padding included."""
    is_text: Shared[bool]
    places: Shared[int] = 0
    """The tokens so far of which it was looked up whether they are padding, and those of them that are."""
    padding: Shared[int] = 0


SPARSE_NONZERO = 0.01
"""A matrix with a larger share of numbers other than zero is not taken for sparse."""
