"""The output of `ddlprof elastic`: a table for people, JSON and CSV for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from ddlprof.base.text import text_of
from ddlprof.base.units import count, figure, long_time
from ddlprof.extensions.cluster.elastic_advice import PolicyOutcome, Share
from ddlprof.report.json_csv import json_text
from ddlprof.report.table import Column, Table, fields
from ddlprof.report.text import labelled, wrapped

TABLE = Table[Share](
    *fields("name=job.job_id", "gpus", "batch", "batch_per_gpu=part.samples", "grad_accum=part.passes", "speed_up"),
    *fields("step_s=step.step_s", "step_low_s=step.low_s", "step_high_s=step.high_s"),
    *fields("samples_per_s=samples_per_s.mean", "samples_per_s_low=samples_per_s.low"),
    *fields("samples_per_s_high=samples_per_s.high", "efficiency", "effective_samples_per_s"),
)
_COURSES = (
    Column[PolicyOutcome]("POLICY", "policy", words=True),
    Column[PolicyOutcome]("MEAN COMPLETION", lambda policy_outcome: long_time(policy_outcome.mean_completion_s)),
    Column[PolicyOutcome]("P95", lambda policy_outcome: long_time(policy_outcome.p95_completion_s)),
    Column[PolicyOutcome]("ALL DONE", lambda policy_outcome: long_time(policy_outcome.makespan_s)),
    Column[PolicyOutcome]("DONE AT LAST ARRIVAL", "ended"),
    Column[PolicyOutcome]("RESTARTS", "restarts"),
)
ASSUMED = (
    "Every batch between min_batch and max_batch is taken to train as well as any other, sample for sample: the"
    " assumption of Effective Elastic Scaling (2020). --stat-eff charges large batches for the noise of the gradients"
)
CHARGED = (
    "A sample of a batch b is worth (n + b0) / (n + b) of one in the smallest batch b0, with n the noise scale of the"
    " gradients in samples (Pollux, 2021)"
)
_WIDTH = 110
_labelled = partial(labelled, width=_WIDTH)


@dataclass(frozen=True)
class ElasticData:
    """An answer with the facts that are shown beside it."""

    gpus: int
    machines: str
    """The machines that the GPUs are in, in words."""
    shares: Sequence[Share]
    is_charged: bool
    policy_outcomes: Sequence[PolicyOutcome] = ()
    notes: Sequence[str] = ()

    @property
    def speed_ups(self) -> float:
        """The sum of the speed-ups of all jobs."""
        return sum(share.speed_up or 0.0 for share in self.shares)

    @property
    def statement(self) -> str:
        """The sentence about what a sample of a larger batch is worth."""
        return CHARGED if self.is_charged else ASSUMED


def as_table(data: ElasticData) -> str:
    """The page, ending with a line end."""
    jobs = count(len(data.shares), "job")
    lines = wrapped(f"{jobs} · {count(data.gpus, 'GPU')} ({data.machines})", _WIDTH, "ddlprof  elastic ")
    lines += ["", *_shares(data)]
    if waiting := [share.job.job_id for share in data.shares if not share.gpus]:
        lines += _labelled("Waits", f"{', '.join(waiting)}: GPUs go to the jobs submitted first")
    if data.policy_outcomes:
        lines += ["", *_policy_outcomes(data)]
    lines += ["", *_labelled("Batches", data.statement)]
    for note in data.notes:
        lines += _labelled("Note", note)
    return text_of(lines)


def as_json(data: ElasticData) -> str:
    """One JSON object; null means not known."""
    return json_text(
        {
            "gpus": data.gpus,
            "machines": data.machines,
            "statistical_efficiency": data.is_charged,
            "batches": data.statement,
            "sum_speed_up": data.speed_ups,
            "jobs": TABLE.records(data.shares),
            "simulated": [vars(policy_outcome) for policy_outcome in data.policy_outcomes],
            "notes": list(data.notes),
        }
    )


def _shares(data: ElasticData) -> list[str]:
    charged = [Column[Share]("EFFICIENCY", "efficiency"), Column[Share]("EFFECTIVE/S", "effective_samples_per_s")]
    table = Table(
        Column("JOB", "job.job_id", words=True),
        Column("GPUS", "gpus"),
        Column("BATCH", "batch"),
        Column("PER GPU", _per_gpu),
        Column("SPEED-UP", "speed_up"),
        Column("SAMPLES/S", "samples_per_s.mean"),
        Column("80 %", _interval),
        *(charged if data.is_charged else []),
    )
    used = sum(share.gpus for share in data.shares)
    rest = [""] * (len(table.columns) - 5)
    return table.lines(data.shares, ["Sum", f"{used:,}", "", "", figure(data.speed_ups), *rest])


def _per_gpu(share: Share) -> str | None:
    part = share.part
    return part and f"{part.samples:,}" + (f" x {part.passes}" if part.passes > 1 else "")


def _interval(share: Share) -> str | None:
    speeds = share.samples_per_s
    return speeds and f"{figure(speeds.low)} to {figure(speeds.high)}"


def _policy_outcomes(data: ElasticData) -> list[str]:
    best = data.policy_outcomes[0].mean_completion_s
    ratio = Column[PolicyOutcome](
        "MEAN / ELASTIC", lambda policy_outcome: f"{policy_outcome.mean_completion_s / best:.2f}"
    )
    return Table(*_COURSES, ratio).lines(data.policy_outcomes)
