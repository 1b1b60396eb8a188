"""Optimizers by their usual names, and how their update is done."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ddlprof.model.operators import (
    FOREACH,
    FUSED,
    OPTIMIZER_UPDATES,
    SINGLE,
    Operator,
    OptimizerUpdate,
    update_operator,
)
from ddlprof.recommender.errors import PredictionError

_SPELLINGS = {"momentum": "sgd-momentum", "sgdm": "sgd-momentum", "sgd-with-momentum": "sgd-momentum", "no": "none"}


@dataclass(frozen=True)
class OptimizerKind:
    """An optimizer by name and how its update is done."""

    name: str
    update: OptimizerUpdate
    implementation: str
    """fused, foreach or single."""

    def state_bytes(self, elements: float, element_bytes: float) -> float:
        """The bytes of state for parameters of that size."""
        return elements * (self.update.states * element_bytes + self.update.state_bytes)

    def temporary_bytes(self, trained_bytes: float, largest_tensor_bytes: float) -> float:
        """The most bytes that an update allocates and frees again."""
        if self.implementation == FUSED:
            return 0.0
        whole = self.implementation == FOREACH
        return self.update.temporary * (trained_bytes if whole else largest_tensor_bytes)

    def operators(self, elements: float, tensors: float, dtype: str, element_bytes: float) -> tuple[Operator, ...]:
        """The update of all parameters as an operator; none if there is no update."""
        if not self.update.calls:
            return ()
        fused = self.implementation == FUSED and self.update.fused is not None
        accesses = self.update.fused if fused else self.update.foreach
        moved = elements * (accesses or 0.0) * element_bytes
        if self.update.state_bytes:  # read and written as they are
            moved += 2 * elements * self.update.state_bytes
        calls = self.update.calls
        return (update_operator(self.name, self.implementation, dtype, elements, tensors, moved, calls),)


def optimizer_named(text: str) -> OptimizerKind:
    """The optimizer with a name such as adamw, SGD, sgd-momentum or adam-fused.

    Raises `PredictionError` that names the known ones.
    """
    name = re.sub(r"[_+: ]", "-", text.strip().lower())
    name = re.sub(r"-loop$", f"-{SINGLE}", name)
    base, _, last = name.rpartition("-")
    implementation = last if base and last in (FUSED, FOREACH, SINGLE) else None
    base = base if implementation else name
    base = _SPELLINGS.get(base, base)
    update = OPTIMIZER_UPDATES.get(base)
    if update is None:
        raise PredictionError(
            f"optimizer {text!r} is not known; one of: {', '.join(OPTIMIZER_UPDATES)};"
            " -fused, -foreach or -single may follow"
        )
    if implementation == FUSED and update.fused is None:
        raise PredictionError(f"optimizer {text!r}: {base} has no fused update; write {base} or {base}-foreach")
    return OptimizerKind(base, update, implementation or update.default)
