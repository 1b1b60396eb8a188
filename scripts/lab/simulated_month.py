"""A month of a job that fails now and then, as a run directory whose goodput is known.

One rank's files stand for those of all. Steps take a minute, with a little noise; failures come at random moments, and
one of them is a hang that a timeout ends. After one failure a machine is missing for a while.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

from ddlprof.model import codec
from ddlprof.model.checkpoint_files import LOADED, SAVED, CheckpointFile
from ddlprof.model.manifest import Manifest
from ddlprof.model.records import CHECKPOINT, EVALUATION, End, Flag, JobSpan, RankHeader, StepRow
from ddlprof.writing.step_buffer import StepBuffer

S = 10**9
MONTH_S = 30 * 86400.0
ORIGIN_UNIX_NS = 1_767_261_600 * S


@dataclass
class Truth:
    """What happened, in seconds of ranks by the names of `ddlprof.analysis.goodput.GOODPUT_PARTS`."""

    parts_s: dict[str, float] = field(default_factory=dict)
    failures: int = 0
    new_steps: int = 0
    useful_s: float = 0.0

    def add(self, part: str, seconds: float) -> None:
        self.parts_s[part] = self.parts_s.get(part, 0.0) + seconds


@dataclass
class Job:
    """How the simulated job trains. Times are seconds."""

    seed: int = 0
    step_s: float = 60.0
    ranks: int = 16
    fewer_ranks: int = 8
    """The ranks of the attempt in which a machine is missing."""
    save_every: int = 50
    save_s: float = 90.0
    evaluate_every: int = 200
    evaluation_s: float = 300.0
    start_up_s: float = 400.0
    first_step_s: float = 200.0
    failure_every_s: float = 2 * 86400.0
    restart_after_s: float = 900.0
    hang_s: float = 1800.0
    names_files: bool = True
    """Whether files of checkpoints are known again; else the last one is assumed."""


class _Attempt:
    """Writes one attempt of rank 0, and what it consists of into the truth."""

    def __init__(self, job: Job, number: int, ranks: int, begin_s: float, truth: Truth, draw: random.Random) -> None:
        self.job, self.ranks, self.truth, self.draw = job, ranks, truth, draw
        self.begin_s, self.now_s = begin_s, job.start_up_s
        origin = ORIGIN_UNIX_NS + round(begin_s * S)
        header = RankHeader(
            0, ranks, 0, number, "host", "a", 1, "A100", "host", 5_000, origin, "month", age_ns=0, spans=True
        )
        self.lines, self.rows = [codec.encode_header(header)], StepBuffer()
        self.steps = 0
        truth.add("start_up", job.start_up_s * ranks)

    def step(self, first: int, reached: int) -> None:
        """One step of the job, with what follows it: the class `other` has evaluations and checkpoints."""
        job, draw = self.job, self.draw
        usual_s = job.step_s * (job.ranks / self.ranks) * draw.uniform(0.97, 1.03)
        number, flags, other_s = first + self.steps, 0, 0.0
        begin_s = self.now_s
        at_s = begin_s
        if self.steps and number % job.evaluate_every == 0:
            flags |= Flag.EVALUATION
            at_s = self._span(EVALUATION, at_s, job.evaluation_s)
            other_s += job.evaluation_s
        if self.steps and number % job.save_every == 0:
            flags |= Flag.CHECKPOINT
            at_s = self._span(CHECKPOINT, at_s, job.save_s)
            other_s += job.save_s
            if job.names_files:
                self.lines.append(codec.encode(CheckpointFile(SAVED, self.steps, "latest", f"f{number}")))
        warm_s = job.first_step_s if not self.steps else 0.0
        self.truth.add("start_up", warm_s * self.ranks)
        self.truth.add("repeated_steps" if number < reached else "new_steps", usual_s * self.ranks)
        if number >= reached:
            self.truth.new_steps += 1
            self.truth.useful_s += usual_s * self.ranks
        self._row(begin_s, usual_s + warm_s, other_s, int(flags))

    def _span(self, what: str, begin_s: float, seconds: float) -> float:
        self.lines.append(codec.encode(JobSpan(what, round(begin_s * S), round(seconds * S))))
        self.truth.add(what, seconds * self.ranks)
        return begin_s + seconds

    def _row(self, begin_s: float, compute_s: float, other_s: float, flags: int) -> None:
        compute, other = round(compute_s * S), round(other_s * S)
        begin = round(begin_s * S)
        row = StepRow(self.steps, begin, compute + other, compute, 0, None, None, 0, 0, other, 1, 64, flags)
        self.rows.keep(row, [])
        self.steps += 1
        self.now_s += (compute + other) / S

    def ends(self, directory: Path, status: str | None, hung_s: float = 0.0) -> float:
        """Writes the files; returns the moment of its end. Without a status it was killed."""
        self.truth.add("hang", hung_s * self.ranks)
        self.now_s += hung_s
        if status or hung_s:
            self.lines.append(codec.encode(End(status or "interrupt", 0 if status else 130, round(self.now_s * S))))
        directory.mkdir(parents=True)
        (directory / "rank-0.jsonl").write_text("".join(self.lines))
        (directory / "rank-0.steps").write_bytes(self.rows.take())
        return self.begin_s + self.now_s


def write_month(directory: Path, job: Job) -> Truth:
    """Writes the run directory and returns what happened in it."""
    draw, truth = random.Random(job.seed), Truth()
    now_s, number, first, reached = 0.0, 0, 0, 0
    while True:
        ranks = job.fewer_ranks if number == 3 else job.ranks
        attempt = _Attempt(job, number, ranks, now_s, truth, draw)
        if number and job.names_files:
            attempt.lines.append(codec.encode(CheckpointFile(LOADED, 0, "latest", f"f{first}")))
        fails_s = now_s + draw.expovariate(1 / job.failure_every_s)
        while now_s + attempt.now_s < min(fails_s, MONTH_S) or attempt.steps < job.save_every + 2:
            attempt.step(first, reached)
        over = now_s + attempt.now_s >= MONTH_S
        hung_s = job.hang_s if number == 5 and not over else 0.0
        now_s = attempt.ends(directory / f"attempt-{number}", "ok" if over else None, hung_s)
        reached = max(reached, first + attempt.steps)
        if over:
            break
        truth.failures += 1
        waited_s = job.restart_after_s * draw.uniform(0.5, 1.5)
        truth.add("waiting", waited_s * ranks)
        now_s += waited_s
        first = (first + attempt.steps - 1) // job.save_every * job.save_every
        number += 1
    Manifest("month", ["month.py"], "month", ORIGIN_UNIX_NS, job.ranks, ORIGIN_UNIX_NS).write(directory)
    return truth
