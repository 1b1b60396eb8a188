"""The report of a refresh: how each call went, and which answers contradict what is known."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

KINDS = ("types", "offerings", "on_demand", "spot")
"""The kinds of fact that each region is asked for, in this order."""


@dataclass(frozen=True)
class RefreshOutcome:
    """The outcome of the call for one kind of fact in one region."""

    region: str
    kind: str
    """One of KINDS, or `prices`."""
    rows: int
    """The number of accepted facts, without those that contradict known ones."""
    error: str | None = None
    """One line if the call failed. Old rows and their dates are then kept."""
    cloud: str = ""
    """The cloud, where several were asked for: its prices in all regions are then one outcome, of the kind `prices`."""

    @property
    def ok(self) -> bool:
        """Whether the call was answered."""
        return self.error is None


@dataclass(frozen=True)
class Contradiction:
    """An answer of the API that contradicts what is known. The known value is kept."""

    region: str
    instance_type: str
    field: str
    """The name of a field of `InstanceType`, or a price: on_demand_usd_per_hour, spot_usd_per_hour."""
    answered: str
    kept: str
    """The known value; empty if nothing was known, so that the fact remains unknown."""
    reason: str

    def __str__(self) -> str:
        kept = f"kept {self.kept}" if self.kept else "left out"
        return f"{self.instance_type} {self.field} {self.answered} ({self.region}): {self.reason}; {kept}"


@dataclass(frozen=True)
class Move:
    """A price that was taken although it is far from the one known before."""

    region: str
    instance_type: str
    pricing: str
    usd_per_hour: float
    before_usd_per_hour: float

    def __str__(self) -> str:
        pricing = self.pricing.replace("_", " ")
        return (
            f"{self.instance_type} {pricing} {self.before_usd_per_hour:.6g} -> {self.usd_per_hour:.6g} ({self.region})"
        )


@dataclass(frozen=True)
class RefreshReport:
    """The result of one refresh. At least one call was answered."""

    outcomes: tuple[RefreshOutcome, ...]
    """One outcome for each region and kind, in the order asked."""
    contradictions: tuple[Contradiction, ...]
    files: tuple[Path, ...]
    """The files of the overlay that were replaced."""
    moves: tuple[Move, ...] = ()
    added: tuple[str, ...] = ()
    """`CLOUD TYPE` of machines that the catalogue lacked, whose GPUs and memory alone are known."""
    left_out: tuple[str, ...] = ()
    """`CLOUD TYPE` of machines that the catalogue lacks, or knows with other GPUs: their prices were not taken."""

    @property
    def ok(self) -> bool:
        """Whether all calls were answered."""
        return all(outcome.ok for outcome in self.outcomes)
