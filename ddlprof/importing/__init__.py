"""Makes a run directory from traces written by torch.profiler (Kineto).

Each trace is read once, event by event. Compact columns are kept of the events that count: kernels and copies,
launches, the outermost operators of each thread, and a few named ranges.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ddlprof.base.errors import UserError
from ddlprof.importing.flight_recorder import dumps_in, read_dumps
from ddlprof.importing.job import as_job, job_name, trace_files
from ddlprof.importing.reading import NoTraceError
from ddlprof.importing.trace import RankTrace, read_trace
from ddlprof.importing.writing import write_run, write_states
from ddlprof.model.hang import RankState
from ddlprof.model.naming import require_unused

__all__ = ["Imported", "Progress", "dumps_in", "import_dumps", "import_traces"]

Progress = Callable[[int, int], None]
"""`progress(bytes read, bytes in all)`."""


@dataclass(frozen=True)
class Imported:
    """The result of an import: the number of ranks imported and in the job, and the steps of the rank with the most."""

    ranks: int
    world_size: int
    steps: int


def import_traces(paths: Sequence[Path], out: Path, progress: Progress | None = None) -> Imported:
    """Reads the traces of one job and writes them to `out` as a run directory.

    Raises UserError if a trace cannot be read, if the traces are of two jobs, or if `out` already exists. Nothing is
    written then.
    """
    require_unused(out)
    files = trace_files(paths)
    total = sum(_size(path) for path, _ in files)
    traces: list[RankTrace] = []
    passed_over: list[str] = []
    before = 0
    for path, in_folder in files:

        def advance(done: int, before: int = before) -> None:
            if progress is not None:
                progress(before + done, total)

        try:
            traces.append(read_trace(path, advance))
        except NoTraceError:
            if not in_folder:
                raise
            passed_over.append(path.name)
        before += _size(path)
    if not traces:
        raise UserError(f"{paths[0]}: no traces in this folder, only other JSON files")
    job = as_job(traces)
    if passed_over:
        job.notes.append(f"no trace, and passed over: {', '.join(passed_over[:4])}")
    write_run(job, job_name(paths), out)
    return Imported(len(job.ranks), job.world_size, max(len(trace.steps) for trace in job.ranks.values()))


def import_dumps(paths: Sequence[Path], out: Path) -> list[RankState]:
    """Writes dumps of torch's Flight Recorder to `out` as a run without steps that says why it hung.

    Raises UserError if one cannot be read, or if `out` already exists.
    """
    require_unused(out)
    states = read_dumps(paths)
    write_states(states, paths[0].parent.resolve().name or "dumps", out)
    return states


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
