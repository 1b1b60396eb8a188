"""The request of `ddlprof sparsity` to a training process, and the counts that the process returns."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from ddlprof.base.errors import UserError
from ddlprof.base.typed import decode


@dataclass(frozen=True)
class SparsityRequest:
    """Which steps to count, and where to write the counts."""

    out: str
    steps: int = 10
    """The number of steps to count."""
    every: int = 10
    """One step in this number of steps is counted."""


@dataclass
class LayerCounts:
    """Sums over all calls of one layer in the counted steps. `macs`: multiply-adds, without those with padding.

    A layer makes three products: forward, data gradient, weight gradient. `*_needed`: multiply-adds that no zero makes
    unnecessary. `*_structured`: multiply-adds left without whole rows and columns of zeros, in the calls of the first
    counted step, in which these are looked for.
    """

    name: str
    kind: str
    """The class of the layer, such as `Linear`."""
    shape: str
    """The shape in words, such as `64 -> 128, 3x3`."""
    calls: int = 0
    """The number of forward passes whose backward pass was seen."""
    inputs: int = 0
    """The number of values in its inputs."""
    input_zeros: int = 0
    gradients: int | None = None
    """The number of values in the gradients of its outputs; None if they cannot be seen."""
    gradient_zeros: int | None = None
    forward_macs: int = 0
    forward_needed: int = 0
    forward_structured: int = 0
    data_macs: int = 0
    """Multiply-adds of the data gradient; 0 if the input needs no gradient."""
    data_needed: int = 0
    data_structured: int = 0
    weight_macs: int = 0
    """Multiply-adds of the weight gradient; 0 if the weight is frozen."""
    weight_needed: int = 0
    weight_structured: int = 0
    structured_macs: int = 0
    """Multiply-adds of all three products in the calls in which rows, columns and groups of four were counted."""
    padded_macs: int = 0
    """Multiply-adds with padding in forward products, which `forward_macs` does not contain."""
    rows: int = 0
    """The number of rows of its inputs: samples or tokens."""
    zero_rows: int = 0
    columns: int = 0
    """The number of columns of its inputs: features or channels, summed over calls."""
    zero_columns: int = 0
    fours: int = 0
    """The number of groups of four neighbouring features or channels in its inputs."""
    fitting_fours: int = 0
    """The number of these groups with two zeros or more."""
    mask_known: bool = False
    """Whether the input comes from a ReLU or a dropout. Gradients are then not needed where the input is zero."""
    before: list[str] = field(default_factory=list)
    """The operators between the layers before and this layer, the last first, by torch's names."""
    after: list[str] = field(default_factory=list)
    """The operators between this layer and the next layers, the first first."""


@dataclass
class StepCounts:
    """The multiply-adds of all layers in one counted step."""

    step: int
    """The number of the step, from 0."""
    forward_macs: int = 0
    forward_needed: int = 0
    backward_macs: int = 0
    backward_needed: int = 0


@dataclass
class SparsityCounts:
    """Everything that one process has counted."""

    steps_seen: int = 0
    """The steps of the whole training that were watched."""
    steps: list[StepCounts] = field(default_factory=list)
    layers: list[LayerCounts] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)
    """Names of layers that exist but whose calls were not seen."""
    compiled: bool = False
    """Whether torch.compile was used."""
    device: str = ""
    notes: list[str] = field(default_factory=list)


def read_counts(path: Path) -> SparsityCounts | None:
    """The counts that a training process has written; None if there are none. Raises UserError if the file is torn."""
    try:
        return decode(SparsityCounts, json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UserError(f"the counts of the script cannot be read ({type(error).__name__}): run it again") from None
