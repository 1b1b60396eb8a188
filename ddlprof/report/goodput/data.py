"""The goodput of a job as plain data: hours of ranks and dollars, what each failure cost, and when to save."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from ddlprof.analysis.goodput import BEGINNING, LAST, MATCHED, TOLD, Goodput, goodput
from ddlprof.base.units import count
from ddlprof.instance_catalog import Price
from ddlprof.model.trial import START_UP, AttemptFacts
from ddlprof.recommender.failures import completion, daly_interval_s, young_interval_s

GOODPUT_SCHEMA = 1
_HOUR_S = 3600.0
_LONG_JOB = 1000
"""Shares of time lost are those of a job of so many times the time between failures."""


@dataclass(frozen=True)
class FailureLine:
    """What the end of one attempt cost, in hours of ranks and dollars (None: no price is known)."""

    attempt: int
    status: str
    hang_h: float
    waiting_h: float
    start_up_h: float
    repeated_h: float
    lost_h: float
    lost_usd: float | None


@dataclass(frozen=True)
class Saving:
    """How often the job saves, and how often it should. Intervals are seconds of work between checkpoints."""

    checkpoint_s: float
    """The mean time of one checkpoint."""
    every_s: float
    every_steps: float
    """The steps between two checkpoints."""
    failure_every_s: float
    """The mean running time for each failure."""
    restart_s: float
    """The mean time from a failure to the first step, waiting included."""
    young_s: float
    daly_s: float
    lost_share: float
    """The expected share of the time lost to checkpoints and failures at the interval used."""
    daly_lost_share: float
    """The same at Daly's interval."""


@dataclass(frozen=True)
class AttemptLine:
    """One attempt: `first_step` counts the job's steps, `known_by` says how it is known."""

    attempt: int
    begin_unix_s: float
    wall_s: float
    ranks: int
    first_step: int
    steps: int
    repeated: int
    known_by: str
    status: str


@dataclass(frozen=True)
class GoodputReport:
    """The goodput of a job. Hours are those of all ranks: GPU-hours where ranks have a GPU."""

    job: str
    device: str
    goodput: float | None
    """Useful steps times a typical step, over the time of all machines."""
    wall_s: float
    rank_hours: float
    usd: float | None
    new_steps: int
    parts_h: dict[str, float]
    parts_usd: dict[str, float | None]
    failures: list[FailureLine]
    lost_to_failures_h: float
    lost_to_failures_usd: float | None
    saving: Saving | None
    """None: no checkpoint or no failure was seen."""
    attempts: list[AttemptLine]
    assumed: list[str] = field(default_factory=list)
    schema: int = GOODPUT_SCHEMA

    @property
    def unit(self) -> str:
        """What the hours are called."""
        return "process-hours" if self.device in ("", "cpu") else "GPU-hours"


def goodput_report(job: str, trials: Sequence[AttemptFacts], price: Price | None = None) -> GoodputReport | None:
    """The goodput of a job with these attempts; `price` is that of one of its machines."""
    found = goodput(trials)
    if found is None:
        return None
    usd = _dollars(found, price)
    per_h = usd / (found.total_s / _HOUR_S) if usd is not None and found.total_s else None
    parts_h = {name: seconds / _HOUR_S for name, seconds in found.parts_s.items()}
    failures = [
        FailureLine(
            attempt=each.attempt,
            status=each.status,
            hang_h=each.hang_s / _HOUR_S,
            waiting_h=each.waiting_s / _HOUR_S,
            start_up_h=each.start_up_s / _HOUR_S,
            repeated_h=each.repeated_s / _HOUR_S,
            lost_h=each.lost_s / _HOUR_S,
            lost_usd=None if per_h is None else each.lost_s / _HOUR_S * per_h,
        )
        for each in found.failures
    ]
    lost_h = sum(each.lost_h for each in failures)
    return GoodputReport(
        job=job,
        device=trials[-1].device,
        goodput=found.share,
        wall_s=found.wall_s,
        rank_hours=found.total_s / _HOUR_S,
        usd=usd,
        new_steps=found.new_steps,
        parts_h=parts_h,
        parts_usd={name: None if per_h is None else hours * per_h for name, hours in parts_h.items()},
        failures=failures,
        lost_to_failures_h=lost_h,
        lost_to_failures_usd=None if per_h is None else lost_h * per_h,
        saving=_saving(found),
        attempts=_attempts(found),
        assumed=_assumed(found),
    )


def _dollars(found: Goodput, price: Price | None) -> float | None:
    """The price of all machines, those that wait for a restart included."""
    if price is None:
        return None
    machines_s = 0.0
    for number, each in enumerate(found.begun):
        machines_s += each.trial.wall_s * each.trial.machines
        machines_s += each.waited_s * found.begun[number - 1].trial.machines if number else 0.0
    return machines_s / _HOUR_S * price.usd_per_hour


def _attempts(found: Goodput) -> list[AttemptLine]:
    return [
        AttemptLine(
            number, each.trial.begin_unix_s, each.trial.wall_s, each.trial.ranks, each.first_step, each.trial.steps,
            each.repeated, each.known_by, each.trial.status,
        )
        for number, each in enumerate(found.begun)
    ]  # fmt: skip


def _saving(found: Goodput) -> Saving | None:
    mtbf_s, save_s, every_s = found.time_between_failures_s, found.checkpoint_s, found.every_s
    if not (mtbf_s and save_s and every_s and found.every_steps):
        return None
    after = found.begun[1:]
    restart_s = sum(each.waited_s + each.trial.parts_s.get(START_UP, 0.0) for each in after) / max(len(after), 1)
    daly_s = daly_interval_s(save_s, mtbf_s)
    return Saving(
        checkpoint_s=save_s,
        every_s=every_s,
        every_steps=found.every_steps,
        failure_every_s=mtbf_s,
        restart_s=restart_s,
        young_s=young_interval_s(save_s, mtbf_s),
        daly_s=daly_s,
        lost_share=_lost_share(every_s, save_s, restart_s, mtbf_s),
        daly_lost_share=_lost_share(daly_s, save_s, restart_s, mtbf_s),
    )


def _lost_share(every_s: float, save_s: float, restart_s: float, mtbf_s: float) -> float:
    work_s = _LONG_JOB * mtbf_s
    return 1 - work_s / completion(work_s, every_s, save_s, restart_s, 1 / mtbf_s).mean_s


_KNOWN = {
    MATCHED: "read a checkpoint that an attempt before had written",
    TOLD: "read a checkpoint that names its step",
    LAST: "assumed to go on from the last checkpoint before",
    BEGINNING: "assumed to begin anew, as no checkpoint was written or read",
}


def _assumed(found: Goodput) -> list[str]:
    """Sentences on what the figures rest on."""
    lines = []
    trained = [each for each in found.begun[1:] if each.trial.steps]
    for kind, number in Counter(each.known_by for each in trained).items():
        lines.append(f"{number} of {len(trained)} restarts: {_KNOWN[kind]}")
    if len(trained) < len(found.begun) - 1:
        lines.append(f"{count(len(found.begun) - 1 - len(trained), 'restart')} ended before the first step")
    if any(each.waited_s for each in found.begun):
        lines.append("between attempts the machines of the attempt before are held")
    stopped = sum(each.trial.status == "stopped" for each in found.begun[:-1])
    if stopped:
        lines.append(f"{count(stopped, 'attempt')} measured in part (--stop-after): what followed is not counted")
    samples = {each.trial.samples_per_step for each in found.begun} - {None}
    if len(samples) > 1:
        known = [size for size in samples if size is not None]
        lines.append(f"a step is not the same work in all attempts: {min(known):,} to {max(known):,} samples")
    return lines
