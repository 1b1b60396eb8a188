"""For how long ranks wait for one of them: by waited time, as a tenth of a second costs more than a thousand jitters.

A rank is last in every collective by a few microseconds, and one of two always is. Collectives and steps are therefore
not counted, but weighted with the time that was waited in them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ddlprof.analysis.thresholds import PHASE_GAP_SHARE, PHASE_LATE_SHARE, PHASE_OF_RUN_SHARE, PHASE_STEPS, PHASES
from ddlprof.analysis.uncertainty import lowest_share

if TYPE_CHECKING:
    from ddlprof.analysis.collectives import RankCollectives
    from ddlprof.store import IntArray


@dataclass(frozen=True, eq=False)
class Lateness:
    """The steady steps of one rank: their numbers, the µs waited for later ranks, and those waited for this rank."""

    step: IntArray
    lost_us: IntArray
    kept_us: IntArray

    @property
    def share(self) -> float:
        """The share of the waited time that was waited for this rank."""
        lost = int(self.lost_us.sum())
        return float(self.kept_us.sum()) / lost if lost else 0.0

    @property
    def steps(self) -> float:
        """The number of steps that the waited time is spread over: one long wait among many short ones counts as one.

        Kish's effective sample size.
        """
        lost = self.lost_us.astype(float)
        return float(lost.sum() ** 2 / (lost**2).sum()) if lost.any() else 0.0

    @property
    def lowest(self) -> float:
        """The lower end of the interval of `share`."""
        return lowest_share(self.share * self.steps, self.steps, self.correlation)

    @property
    def correlation(self) -> float:
        """The correlation of the share of a step with that of the next, weighted with their time; 0 if negative.

        It is near 1 if ranks take long turns.
        """
        some = self.lost_us > 0
        lost = self.lost_us[some].astype(float)
        if not len(lost):
            return 0.0
        away = self.kept_us[some] / lost - self.share
        squares = float((lost * away**2).sum())
        pairs = np.sqrt(lost[1:] * lost[:-1]) * away[1:] * away[:-1]
        return max(0.0, float(pairs.sum()) / squares) if squares > 0 else 0.0

    @property
    def phases(self) -> tuple[tuple[int, int], ...]:
        """The first and last steps of the phases in which ranks wait for this one; empty if it is late all the time.

        A phase is a row of late steps with gaps that are short against the run.
        """
        kept = self.kept_us.astype(float)
        total = float(kept.sum())
        if total <= 0:
            return ()
        late = np.flatnonzero(kept > (kept**2).sum() / total / 2)  # half of what a waited microsecond is part of
        cuts = np.flatnonzero(np.diff(late) > max(1.0, PHASE_GAP_SHARE * len(kept))) + 1
        rows = [row for row in np.split(late, cuts) if len(row) >= PHASE_STEPS]
        inside = sum(float(kept[row[0] : row[-1] + 1].sum()) for row in rows)
        covered = sum(int(row[-1]) + 1 - int(row[0]) for row in rows)
        if not 0 < len(rows) <= PHASES or inside < PHASE_LATE_SHARE * total:
            return ()
        if covered > PHASE_OF_RUN_SHARE * len(kept):
            return ()
        return tuple((int(self.step[row[0]]), int(self.step[row[-1]])) for row in rows)


def lateness_of(matched: RankCollectives, step: IntArray, steady: NDArray[np.bool_]) -> Lateness:
    """How long ranks waited in the steady steps of one rank. `step`: the numbers of all its steps."""
    row = matched.table.row

    def by_step(us: IntArray) -> IntArray:
        return np.asarray(np.bincount(row, weights=us, minlength=len(steady))[steady].astype(np.int64))

    return Lateness(step[steady], by_step(matched.lost_us), by_step(np.where(matched.last, matched.lost_us, 0)))
