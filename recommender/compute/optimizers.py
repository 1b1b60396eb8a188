"""What optimizers keep, and what their updates read and write, for each parameter that is trained.

Accesses are counted from torch 2.x's own updates: `fused` is one kernel for all of it; `foreach`, the default on GPUs,
is one operation after the other over all tensors. Single tensors (the default elsewhere) do as foreach, one by one.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from ddlprof.model.operators import Operator
from recommender.errors import PredictionError

FUSED, FOREACH, SINGLE = "fused", "foreach", "single"
_CHUNK_ELEMENTS = 65_536 * 320
"""The elements that one launch of torch's multi_tensor_apply takes: 320 blocks of a chunk each."""
_TENSORS = {FUSED: 36, FOREACH: 64}
"""The tensors that one launch takes; of the four lists of a fused Adam, or of the two of most foreach operations."""


@dataclass(frozen=True)
class Update:
    """One optimizer. Accesses are reads and writes of a whole copy of the parameters, in their own type."""

    fused: float | None
    """The accesses of a fused update; None: there is none."""
    foreach: float
    """The accesses of an update by operations."""
    calls: int
    """The operations of an update."""
    states: float = 0.0
    """What is kept between updates, in copies of the parameters."""
    state_bytes: float = 0.0
    """What is kept besides, in bytes for each element whatever its type: quantised states."""
    temporary: float = 0.0
    """Copies that a foreach update makes and frees; a single tensor makes them of itself only."""
    default: str = FOREACH
    """How the update is done on a GPU where nobody says otherwise."""


UPDATES = {
    "none": Update(0, 0, 0),
    "sgd": Update(3, 3, 1),
    "sgd-momentum": Update(5, 8, 3, states=1),
    "adam": Update(7, 18, 7, states=2, temporary=1),
    "adamw": Update(7, 20, 8, states=2, temporary=1),
    "amsgrad": Update(9, 21, 8, states=3, temporary=1),
    "nadam": Update(None, 24, 10, states=2, temporary=1),
    "radam": Update(None, 24, 10, states=2, temporary=1),
    "adamax": Update(None, 16, 6, states=2, temporary=1),
    "adagrad": Update(5, 13, 5, states=1, temporary=1),
    "rmsprop": Update(None, 13, 5, states=1, temporary=1),
    "adadelta": Update(None, 27, 11, states=2, temporary=2),
    "rprop": Update(None, 20, 8, states=2, temporary=1),
    # Not of torch, or without its multi-tensor kernels: one tensor after the other.
    "adafactor": Update(None, 16, 12, states=0.01, temporary=1, default=SINGLE),
    "lion": Update(5, 13, 5, states=1, temporary=1, default=SINGLE),
    "lamb": Update(12, 24, 11, states=2, temporary=1, default=SINGLE),
    "adam8bit": Update(4, 4, 1, state_bytes=2.0, default=FUSED),
    "adamw8bit": Update(4, 4, 1, state_bytes=2.0, default=FUSED),
}
"""The optimizers by their names; `-fused`, `-foreach` or `-single` may follow a name."""

_SPELLINGS = {"momentum": "sgd-momentum", "sgdm": "sgd-momentum", "sgd-with-momentum": "sgd-momentum", "no": "none"}


@dataclass(frozen=True)
class Optimizer:
    """An optimizer by name and how its update is done."""

    name: str
    update: Update
    implementation: str
    """One of fused, foreach and single."""

    def state_bytes(self, elements: float, element_bytes: float) -> float:
        """The bytes kept between updates of parameters of that size."""
        return elements * (self.update.states * element_bytes + self.update.state_bytes)

    def temporary_bytes(self, trained_bytes: float, largest_tensor_bytes: float) -> float:
        """The most that an update makes and frees again."""
        if self.implementation == FUSED:
            return 0.0
        whole = self.implementation == FOREACH
        return self.update.temporary * (trained_bytes if whole else largest_tensor_bytes)

    def operators(self, elements: float, tensors: float, dtype: str, element_bytes: float) -> tuple[Operator, ...]:
        """The update of all parameters as an operator; none where there is no update."""
        if not self.update.calls:
            return ()
        fused = self.implementation == FUSED and self.update.fused is not None
        accesses = self.update.fused if fused else self.update.foreach
        moved = elements * (accesses or 0.0) * element_bytes
        if self.update.state_bytes:  # read and written as they are
            moved += 2 * elements * self.update.state_bytes
        return (
            Operator(
                kind="optimizer", phase="optimizer", name=f"_{self.implementation}_{self.name}_", dtype=dtype,
                shape=(round(elements), round(tensors)), flops=0.0, bytes=moved,
                launches=self._launches(elements, tensors), count=1.0, fixed_bytes=moved,
            ),
        )  # fmt: skip

    def _launches(self, elements: float, tensors: float) -> float:
        calls = 1 if self.implementation == FUSED else self.update.calls
        if self.implementation == SINGLE:
            return calls * max(tensors, 1)
        return calls * math.ceil(tensors / _TENSORS[self.implementation] + elements / _CHUNK_ELEMENTS)


def optimizer_named(text: str) -> Optimizer:
    """The optimizer of a name such as adamw, SGD, sgd-momentum or adam-fused.

    Raises `PredictionError` naming those known.
    """
    name = re.sub(r"[_+: ]", "-", text.strip().lower())
    name = re.sub(r"-loop$", f"-{SINGLE}", name)
    base, _, last = name.rpartition("-")
    implementation = last if base and last in (FUSED, FOREACH, SINGLE) else None
    base = base if implementation else name
    base = _SPELLINGS.get(base, base)
    update = UPDATES.get(base)
    if update is None:
        raise PredictionError(
            f"optimizer {text!r} is not known; one of: {', '.join(UPDATES)}; -fused, -foreach or -single may follow"
        )
    if implementation == FUSED and update.fused is None:
        raise PredictionError(f"optimizer {text!r}: {base} has no fused update; write {base} or {base}-foreach")
    return Optimizer(base, update, implementation or update.default)
