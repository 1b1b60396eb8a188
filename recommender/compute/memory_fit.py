"""Whether a need of memory fits on a GPU: what a process gets there, how likely that is enough, and the verdict."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ddlprof.instance_catalog import Gpu
from ddlprof.recommender.estimate import Z80

FITS, PERHAPS, DOES_NOT_FIT = "fits", "fits perhaps", "does not fit"
VERDICTS = (FITS, PERHAPS, DOES_NOT_FIT)
_SHOWN_SHARE = {"HBM": 0.985, "workstation": 0.98, "GDDR": 0.92}
"""What is assumed to be shown of the nominal memory where no figure is known, by what GPUs with a figure have at least:
stacked memory; cards for workstations and games; other cards with GDDR, whose error correction takes a sixteenth."""
_WORKSTATION = ("RTX", "GTX", "TITAN")


@dataclass(frozen=True)
class NeededMemory:
    """The GiB that one GPU needs, with its 80 % interval."""

    gib: float
    low_gib: float
    high_gib: float


@dataclass(frozen=True)
class MemoryVerdict:
    """How a need compares with what a process gets of one GPU."""

    needed: NeededMemory
    usable_gib: float

    @property
    def probability(self) -> float:
        """The probability, from 0 to 1, that the step fits.

        The logarithm of the need is normal on either side of the expected need, each side as wide as its end of the
        80 % interval says.
        """
        need = self.needed
        if not (need.gib > 0 and self.usable_gib > 0):
            return float(need.gib <= self.usable_gib)
        end = need.high_gib if self.usable_gib > need.gib else need.low_gib
        sd = abs(math.log(end / need.gib)) / Z80 if end > 0 else math.inf
        away = math.log(self.usable_gib / need.gib)
        if not sd:
            return float(away >= 0)
        return 0.5 * (1.0 + math.erf(away / sd / math.sqrt(2.0)))

    @property
    def word(self) -> str:
        """One of `VERDICTS`: by where the interval of the need lies."""
        if self.needed.high_gib <= self.usable_gib:
            return FITS
        return PERHAPS if self.needed.low_gib < self.usable_gib else DOES_NOT_FIT

    @property
    def is_likely(self) -> bool:
        """Whether it fits rather than not."""
        return self.probability >= 0.5


def verdict_of(needed: NeededMemory | None, usable_gib: float | None) -> MemoryVerdict | None:
    """Whether a need fits into what a process gets; None: one of them is not known."""
    return None if needed is None or usable_gib is None else MemoryVerdict(needed, usable_gib)


def figures_of(verdict: MemoryVerdict | None) -> dict[str, Any]:
    """The fields of estimates and plans that say whether a step fits, at least perhaps; None where it is not known."""
    return {
        "fits_memory": None if verdict is None else verdict.word != DOES_NOT_FIT,
        "memory_verdict": None if verdict is None else verdict.word,
        "memory_fit_probability": None if verdict is None else verdict.probability,
    }


def usable_gib_of(gpu: Gpu, memory_gib: float | None = None) -> float | None:
    """The GiB of a GPU that a process gets, its CUDA context included; None: not known.

    `memory_gib`: the nominal memory of the machine's GPU, or of its share of one; None: that of the GPU.
    """
    nominal = gpu.memory_gib if memory_gib is None else memory_gib
    if nominal is None:
        return None
    if gpu.shown_gib and gpu.memory_gib:
        return nominal * gpu.shown_gib / gpu.memory_gib
    kind = "HBM" if (gpu.memory_type or "").startswith("HBM") else "GDDR"
    if kind == "GDDR" and gpu.gpu_model.startswith(_WORKSTATION):
        kind = "workstation"
    return nominal * _SHOWN_SHARE[kind]
