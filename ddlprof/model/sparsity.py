"""What `ddlprof sparsity` asks a training process for, and the counts that the process hands back."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from ddlprof.base.errors import UserError
from ddlprof.model.options import SPARSITY_VARIABLE

_Record = TypeVar("_Record")


@dataclass(frozen=True)
class SparsityRequest:
    """Handed down by environment: which steps to count, and where to write the counts."""

    out: str
    steps: int = 10
    """The number of steps to count."""
    every: int = 10
    """One step of so many is counted."""

    def environment(self) -> dict[str, str]:
        """The variable by which the process finds the request."""
        return {SPARSITY_VARIABLE: json.dumps(asdict(self))}

    @classmethod
    def from_environment(cls) -> SparsityRequest | None:
        """What this process is asked for, if anything; the variable is removed."""
        text = os.environ.pop(SPARSITY_VARIABLE, None)
        return cls(**json.loads(text)) if text else None


@dataclass
class LayerCounts:
    """Sums over all calls of one layer in the counted steps. `macs`: multiply-adds, those with padding left out.

    A layer makes three products: forward, data gradient, weight gradient. `*_needed` are the multiply-adds that no
    zero makes unnecessary; `*_structured` those that are left when whole rows and columns of zeros are left out, in the
    calls in which that was looked at: those of the first counted step.
    """

    name: str
    kind: str
    """The class of the layer: `Linear`."""
    shape: str
    """In words: `64 -> 128, 3x3`."""
    calls: int = 0
    """Forward passes of which the backward pass was seen."""
    inputs: int = 0
    """Values of its inputs."""
    input_zeros: int = 0
    gradients: int | None = None
    """Values of the gradients of its outputs; None where they cannot be seen."""
    gradient_zeros: int | None = None
    forward_macs: int = 0
    forward_needed: int = 0
    forward_structured: int = 0
    data_macs: int = 0
    """0 where the input needs no gradient."""
    data_needed: int = 0
    data_structured: int = 0
    weight_macs: int = 0
    """0 where the weight is frozen."""
    weight_needed: int = 0
    weight_structured: int = 0
    structured_macs: int = 0
    """Multiply-adds of all three products, in the calls in which rows, columns and fours were counted."""
    padded_macs: int = 0
    """Multiply-adds with padding in the forward products, which `forward_macs` leaves out."""
    rows: int = 0
    """Rows of its inputs: samples or tokens."""
    zero_rows: int = 0
    columns: int = 0
    """Columns of its inputs: features or channels, summed over the calls."""
    zero_columns: int = 0
    fours: int = 0
    """Groups of four neighbours of its inputs, along the features or channels."""
    fitting_fours: int = 0
    """Groups of four with two zeros or more."""
    mask_known: bool = False
    """Whether the input comes out of a ReLU or a dropout: where it is zero, its gradient is not needed."""
    before: list[str] = field(default_factory=list)
    """What the input went through on its way from the layers before it, the last first, by torch's names."""
    after: list[str] = field(default_factory=list)
    """What its output goes through on its way to the next layers, the first first."""


@dataclass
class LstmSeen:
    """The shape of an LSTM that the script called with gradients, for timing the same elsewhere."""

    name: str
    input_size: int
    hidden_size: int
    num_layers: int
    batch: int
    length: int
    """Time steps of a sequence."""
    dropout: float = 0.0
    bidirectional: bool = False
    projected: bool = False
    packed: bool = False


@dataclass(frozen=True)
class LstmTiming:
    """One forward and backward of an LSTM of the script's shape on this machine, in seconds."""

    name: str
    shape: str
    dropout: float
    """The share that the LSTMs with dropout drop, of all inputs and hidden states."""
    torch_s: float
    """torch.nn.LSTM, with its own dropout between layers."""
    random_s: float
    """The code of the structured one, dropping other neurons for each sample."""
    structured_s: float


@dataclass
class StepCounts:
    """The products of all layers in one counted step."""

    step: int
    """From 0."""
    forward_macs: int = 0
    forward_needed: int = 0
    backward_macs: int = 0
    backward_needed: int = 0


@dataclass
class SparsityCounts:
    """Everything that one process has counted."""

    steps_seen: int = 0
    """Steps of the whole training, as far as they were watched."""
    steps: list[StepCounts] = field(default_factory=list)
    layers: list[LayerCounts] = field(default_factory=list)
    lstms: list[LstmSeen] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)
    """Layers of which no call was seen, though they are there."""
    compiled: bool = False
    """Whether torch.compile has compiled something."""
    device: str = ""
    threads: int = 1
    """torch's threads in the script."""
    notes: list[str] = field(default_factory=list)


def to_text(counts: SparsityCounts) -> str:
    """The counts as JSON."""
    return json.dumps(asdict(counts))


def read_counts(path: Path) -> SparsityCounts | None:
    """The counts that a training process has left; None where it left none. Raises UserError where they are torn."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        return SparsityCounts(
            **{
                **value,
                "steps": [_record(StepCounts, each) for each in value["steps"]],
                "layers": [_record(LayerCounts, each) for each in value["layers"]],
                "lstms": [_record(LstmSeen, each) for each in value["lstms"]],
            }
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"the counts of the script cannot be read ({type(error).__name__}): run it again") from None


def _record(kind: type[_Record], value: dict[str, Any]) -> _Record:
    known = {each.name for each in fields(kind)}  # type: ignore[arg-type]
    if set(value) - known:
        raise ValueError("unknown fields")
    return kind(**value)
