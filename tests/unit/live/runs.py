"""Runs that grow: written by the writer of the training process, flush by flush."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from ddlprof.model.records import ContextRow, End, RankHeader, StepRow
from ddlprof.writing.writer import FinishedStep, RankWriter
from tests.golden.runs import MS, header, manifest, step

DIED_PID = 2**22 + 1
"""Above the largest number of a process."""


class GrowingRun:
    """Ranks that write into `directory`, ten steps at a time."""

    def __init__(self, directory: Path, ranks: int = 1, attempt: int = 0, **header_fields: object) -> None:
        self.directory = directory
        now = time.time_ns()
        self.heads = [
            replace(header(rank, ranks, attempt), origin_unix_ns=now, job_id="job", **header_fields)  # type: ignore[arg-type]
            for rank in range(ranks)
        ]
        self.writers = [RankWriter(head) for head in self.heads]
        self.next = [0] * ranks
        manifest(ranks).write(_made(directory))

    def begin(self, *ranks: int) -> GrowingRun:
        for rank in ranks or range(len(self.writers)):
            self.writers[rank].open(self.directory)
        return self

    def train(self, steps: int = 10, queued_share: float | None = None, **kwargs: float) -> None:
        for rank, writer in enumerate(self.writers):
            for _ in range(steps):
                writer.step(as_step(step(self.next[rank], **kwargs)))  # type: ignore[arg-type]
                self.next[rank] += 1
            now_ns = self.next[rank] * 10 * MS
            queued_ns = None if queued_share is None else round(queued_share * now_ns)
            row = ContextRow(now_ns, 50.0, 1 << 30, (100 + rank) << 20, None, None, None, process_queued_ns=queued_ns)
            writer.context(row)
            writer.flush()

    def end(self, status: str = "ok", code: int = 0) -> None:
        for rank, writer in enumerate(self.writers):
            writer.context(End(status, code, self.next[rank] * 10 * MS))
            writer.close()

    def text(self, rank: int = 0) -> Path:
        head: RankHeader = self.heads[rank]
        return self.directory / f"attempt-{head.attempt}" / f"rank-{rank}.jsonl"

    def steps(self, rank: int = 0) -> Path:
        return self.text(rank).with_suffix(".steps")


def _made(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def as_step(row: StepRow) -> FinishedStep:
    return FinishedStep(row, [], row.start_ns, True)
