"""Writes imported ranks as a run directory with the writer of `ddlprof run`. An error leaves no directory behind."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ddlprof.base.errors import refusing
from ddlprof.base.files import temporary_beside
from ddlprof.base.package import VERSION
from ddlprof.importing.job import ImportedJob
from ddlprof.importing.trace import RankTrace
from ddlprof.model.hang import RankState
from ddlprof.model.manifest import IMPORTED, Manifest, TrainingFacts
from ddlprof.model.records import DEVICE_CLOCK, End, GroupFacts, RankHeader, StepRow
from ddlprof.writing.writer import FinishedStep, RankWriter

_SEQS_OF_STEP = 1 << 24
"""The sequence numbers reserved for each step. Ranks may have recorded different first steps, so collectives are
numbered within each step."""
NOTE_SOURCE = "import"


@dataclass(slots=True)
class ImportedCollective:
    """One collective of a rank in the form that `RankWriter` takes; times in nanoseconds."""

    group: str
    seq: int
    op: str
    bytes: int
    ranks: int
    ready: int
    end: int
    need: int | None
    exposed: int
    root: int | None = None


def write_run(job: ImportedJob, name: str, out: Path) -> None:
    """Writes the run directory. Raises UserError if that fails, and removes what was written."""
    job_id = _new_job_id()
    with _new_folder(out) as folder:
        for rank, trace in job.ranks.items():
            _write_rank(job, rank, trace, job_id, folder)
        manifest_of(job, name, job_id).write(folder)


def write_states(states: Sequence[RankState], name: str, out: Path) -> None:
    """Writes a run directory of ranks of which only their last states are known. Raises UserError if that fails."""
    job_id, world_size = _new_job_id(), states[0].world_size
    with _new_folder(out) as folder:
        for state in states:
            header = RankHeader(
                rank=state.rank, world_size=world_size, local_rank=0, attempt=0, host=state.host, node_id="unknown",
                pid=0, device="unknown GPU", clock="host", origin_ns=0, origin_unix_ns=state.unix_ns, job_id=job_id,
            )  # fmt: skip
            writer = RankWriter(header)
            writer.open(folder)
            writer.note(NOTE_SOURCE, "made of a dump of torch's Flight Recorder, which has collectives and no steps")
            writer.close()
            state.write(folder / "attempt-0")
        Manifest(
            name=name, argv=[], job_id=job_id, created_unix_ns=time.time_ns(), world_size=world_size,
            origin_unix_ns=states[0].unix_ns, versions={"ddlprof": VERSION},
        ).write(folder)  # fmt: skip


def _new_job_id() -> str:
    return f"{IMPORTED}{os.getpid()}:{time.time_ns()}"


@contextmanager
def _new_folder(out: Path) -> Iterator[Path]:
    """Yields a folder that becomes `out` once all is written; after an error there is none."""
    folder = temporary_beside(out)
    with refusing(f"{out}: cannot be written"):
        out.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir()  # fails if anything has that name, as a link does
        try:
            yield folder
            if out.is_dir():
                out.rmdir()  # it is empty
            os.replace(folder, out)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def manifest_of(job: ImportedJob, name: str, job_id: str) -> Manifest:
    """The manifest with what the traces tell. Model and batch are not known from a trace."""
    first = next(iter(job.ranks.values()))
    backends = {trace.about.backend for trace in job.ranks.values()}
    return Manifest(
        name=name,
        argv=[],
        job_id=job_id,
        created_unix_ns=time.time_ns(),
        world_size=job.world_size,
        origin_unix_ns=first.begin_ns,
        versions={**first.about.versions, "ddlprof": VERSION},
        host={"gpus": list(first.about.gpus.values())} if first.about.gpus else {},
        training=TrainingFacts(backend=first.about.backend if len(backends) == 1 else None),
    )


def _write_rank(job: ImportedJob, rank: int, trace: RankTrace, job_id: str, folder: Path) -> None:
    writer = RankWriter(
        RankHeader(
            rank=rank,
            world_size=job.world_size,
            local_rank=trace.device or 0,
            attempt=0,
            host=trace.about.host or "unknown",
            node_id=job.nodes[rank],
            pid=0,
            device=trace.device_name,
            clock="host" if trace.device is None else DEVICE_CLOCK,
            origin_ns=trace.begin_ns,
            origin_unix_ns=trace.begin_ns,
            job_id=job_id,
        )
    )
    writer.open(folder)
    writer.note(NOTE_SOURCE, "made of traces of torch.profiler; what they do not tell is not measured")
    for text in (*trace.notes, *job.notes):
        writer.note(NOTE_SOURCE, text)
    for facts in groups_of(trace):
        writer.context(facts)
    for step in steps_of(trace):
        writer.step(step)
    if trace.window is not None and trace.window.updates:
        writer.context(trace.window)
    if not trace.torn:
        writer.context(End("ok", 0, trace.end_ns - trace.begin_ns))
    writer.close()
    if writer.failure is not None:
        raise OSError(writer.failure)


def groups_of(trace: RankTrace) -> list[GroupFacts]:
    """The process groups whose descriptions name a dimension of the layout."""
    known = {message.group: message for message in trace.transfers.messages if message.dimension}
    return [GroupFacts(name, each.dimension, each.dimension, each.ranks) for name, each in known.items()]


def steps_of(trace: RankTrace) -> Iterator[FinishedStep]:
    """The steps in the form that the writer takes. Steps without length are left out."""
    steps = trace.steps
    origin = trace.begin_ns - trace.about.base_ns
    by_step = _collectives(trace)
    for index in range(len(steps)):
        begin, end = int(steps.begin[index]), int(steps.end[index])
        if end <= begin:
            continue
        parts = [int(part[index]) for part in steps.parts] if steps.parts is not None else [None] * 3
        row = StepRow(
            step=int(steps.number[index]),
            start_ns=begin - origin,
            step_ns=end - begin,
            compute_ns=None if steps.compute is None else int(steps.compute[index]),
            compute_forward_ns=parts[0],
            compute_backward_ns=parts[1],
            compute_optimizer_ns=parts[2],
            data_ns=None if steps.data is None else int(steps.data[index]),
            data_fetch_ns=None,
            data_prep_ns=None,
            h2d_ns=None if steps.h2d is None else int(steps.h2d[index]),
            comm_ns=None if steps.comm is None else int(steps.comm[index]),
            other_ns=int(steps.other[index]),
            microbatches=int(trace.passes[index]),
            samples=None,
            flags=0,
        )
        yield FinishedStep(row, by_step.get(index, []), begin, saw_forward=False)


def _collectives(trace: RankTrace) -> dict[int, list[ImportedCollective]]:
    """The collectives that are known well enough to compare them between ranks, by the step in which they began."""
    transfers, steps = trace.transfers, trace.steps
    by_step: dict[int, list[ImportedCollective]] = {}
    if not len(steps):
        return by_step
    place = np.searchsorted(steps.begin, transfers.ready, side="right") - 1
    for row in range(len(place)):
        index, which = int(place[row]), int(transfers.message[row])
        if which < 0 or index < 0 or transfers.ready[row] >= steps.end[index]:
            continue
        message = transfers.messages[which]
        if message.bytes is None:
            continue
        mine = by_step.setdefault(index, [])
        seq = int(steps.number[index]) * _SEQS_OF_STEP + sum(c.group == message.group for c in mine)
        need = int(transfers.need[row])
        mine.append(
            ImportedCollective(
                message.group, seq, message.op, message.bytes, message.ranks, int(transfers.ready[row]),
                int(transfers.end[row]), None if need < 0 else need, int(transfers.exposed[row]),
            )
        )  # fmt: skip
    return by_step
