"""Advice about jobs, and how long each should wait for closer GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddlprof.extensions.cluster.advice import Advice, Estimated, SpreadCost, Wait, usual_wait_s, worth_waiting_s
from ddlprof.extensions.cluster.machines import Level

LEAST_WAIT_S = 60.0
"""The shortest wait in seconds that is worth a hint: Slurm does not schedule more often."""


@dataclass(frozen=True)
class JobAdvice:
    """One job with its advice, its command, and how long it still runs."""

    advice: Advice
    command: tuple[str, ...] = ()
    """The words that followed `python`; empty if not known."""
    rest_s: float | None = None
    """The seconds that the job still runs on the closest GPUs; None where the user did not say."""
    history: Sequence[Wait] | None = None

    def wait_s(self, loss: SpreadCost) -> Estimated | None:
        """The longest wait for closer GPUs that is worth it against GPUs at this distance; None: not known."""
        return None if self.rest_s is None else worth_waiting_s(loss, self.rest_s, self.advice.gpus, self.history)

    def hint_s(self, level: Level) -> Estimated | None:
        """The longest wait for closer GPUs, or None where it may be too short to be worth a hint."""
        loss = self.advice.loss(level)
        wait_s = self.wait_s(loss) if loss else None
        return wait_s if wait_s is not None and wait_s.surely >= LEAST_WAIT_S else None

    def stays_together(self, level: Level) -> bool:
        """Whether it surely never pays to take GPUs at that level.

        Without a history of waits, the run must take at least twice as long there, as then even a wait as long as the
        run pays. With a history, it must pay to wait longer than jobs of this size usually have to.
        """
        loss = self.advice.loss(level)
        if loss is None or loss.wait_share is None or self.rest_s is None:
            return False
        if self.history is None:
            return loss.wait_share.surely >= 1
        return loss.wait_share.surely * self.rest_s >= usual_wait_s(self.history, self.advice.gpus, level)

    @property
    def requires_rack(self) -> bool | None:
        """Whether the job's machines are to be of one rack: required where it never pays to take several, preferred
        (False) where it is worth a wait; None: it is not asked for."""
        if len(self.advice.closest) == 1:
            return None
        if self.stays_together(Level.NETWORK):
            return True
        return False if self.hint_s(Level.NETWORK) else None


def rounded_s(seconds: float) -> int:
    """A time rounded to two or three digits: no wait is known better than that."""
    unit = 60 if seconds < 3600 else 600 if seconds < 36_000 else 3600
    return round(seconds / unit) * unit
