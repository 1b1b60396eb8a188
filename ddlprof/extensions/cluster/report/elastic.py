"""The output of `ddlprof elastic`: a table for people, JSON and CSV for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ddlprof.base.text import text_of
from ddlprof.base.units import NOT_KNOWN, count, figure, long_time
from ddlprof.extensions.cluster.elastic_advice import Course, Share
from ddlprof.report.json_csv import csv_text, json_text
from ddlprof.report.text import aligned, labelled, wrapped

COLUMNS = (
    "name", "gpus", "batch", "batch_per_gpu", "grad_accum", "speed_up", "step_s", "step_low_s", "step_high_s",
    "samples_per_s", "samples_per_s_low", "samples_per_s_high", "efficiency", "effective_samples_per_s",
)  # fmt: skip
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
    courses: Sequence[Course] = ()
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
    if data.courses:
        lines += ["", *_courses(data)]
    lines += ["", *_labelled("Batches", data.statement)]
    for note in data.notes:
        lines += _labelled("Note", note)
    return text_of(lines)


def as_csv(data: ElasticData) -> str:
    """A row for each job."""
    return csv_text(COLUMNS, map(_record, data.shares))


def as_json(data: ElasticData) -> str:
    """One JSON object; null means not known."""
    return json_text(
        {
            "gpus": data.gpus,
            "machines": data.machines,
            "statistical_efficiency": data.is_charged,
            "batches": data.statement,
            "sum_speed_up": data.speed_ups,
            "jobs": [_record(share) for share in data.shares],
            "simulated": [vars(course) for course in data.courses],
            "notes": list(data.notes),
        }
    )


def _record(share: Share) -> dict[str, Any]:
    step, speeds, part = share.step, share.samples_per_s, share.part
    values = {
        "name": share.job.job_id,
        "gpus": share.gpus,
        "batch": share.batch,
        "batch_per_gpu": part.samples if part else None,
        "grad_accum": part.passes if part else None,
        "speed_up": share.speed_up,
        "step_s": step.step_s if step else None,
        "step_low_s": step.low_s if step else None,
        "step_high_s": step.high_s if step else None,
        "samples_per_s": speeds[0] if speeds else None,
        "samples_per_s_low": speeds[1] if speeds else None,
        "samples_per_s_high": speeds[2] if speeds else None,
        "efficiency": share.efficiency,
        "effective_samples_per_s": speeds[0] * share.efficiency if speeds and share.efficiency is not None else None,
    }
    return {name: values[name] for name in COLUMNS}


def _shares(data: ElasticData) -> Iterator[str]:
    heads = ["JOB", "GPUS", "BATCH", "PER GPU", "SPEED-UP", "SAMPLES/S", "80 %"]
    if data.is_charged:
        heads += ["EFFICIENCY", "EFFECTIVE/S"]
    rows = [heads]
    for share in data.shares:
        found = _record(share)
        if not share.gpus:
            rows.append([share.job.job_id, "0", *[NOT_KNOWN] * (len(heads) - 2)])
            continue
        passes = f" x {found['grad_accum']}" if found["grad_accum"] > 1 else ""
        interval = f"{figure(found['samples_per_s_low'])} to {figure(found['samples_per_s_high'])}"
        row = [
            share.job.job_id, str(share.gpus), f"{share.batch:,}", f"{found['batch_per_gpu']:,}{passes}",
            figure(share.speed_up), figure(found["samples_per_s"]), interval,
        ]  # fmt: skip
        if data.is_charged:
            row += [figure(share.efficiency), figure(found["effective_samples_per_s"])]
        rows.append(row)
    used = sum(share.gpus for share in data.shares)
    rows.append(["Sum", str(used), "", "", figure(data.speed_ups), *[""] * (len(heads) - 5)])
    yield from aligned(rows, right=range(1, len(heads)))


def _courses(data: ElasticData) -> Iterator[str]:
    best = data.courses[0].mean_completion_s
    rows = [["POLICY", "MEAN COMPLETION", "P95", "ALL DONE", "DONE AT LAST ARRIVAL", "RESTARTS", "MEAN / ELASTIC"]]
    rows += [
        [
            course.policy, long_time(course.mean_completion_s), long_time(course.p95_completion_s),
            long_time(course.makespan_s), str(course.ended), str(course.restarts),
            f"{course.mean_completion_s / best:.2f}",
        ]
        for course in data.courses
    ]  # fmt: skip
    yield from aligned(rows, right=range(1, 7))
