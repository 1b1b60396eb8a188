"""Which run directory a job writes to, and which attempt of the job this is."""

from __future__ import annotations

import contextlib
import glob
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ddlprof.base.errors import UserError
from ddlprof.base.real_process import getpid
from ddlprof.collect.job.environment import ElasticLaunch
from ddlprof.model import rank_ends
from ddlprof.model.manifest import MANIFEST_NAME, Manifest
from ddlprof.model.naming import RUNS_FOLDER, default_directory, on_this_machine, require_unused
from ddlprof.model.options import Options
from ddlprof.model.records import GOOD_ENDS, RankHeader

_NO_ID = "none"
"""The id of a job for which torch's launcher got no `--rdzv-id`."""


@dataclass(frozen=True)
class Claim:
    """The directory, job and attempt that rank 0 chose."""

    path: Path
    job_id: str
    attempt: int


def new_job_id(options: Options, start: ElasticLaunch) -> str:
    """A new id for a job that begins here. It is the same when the same launcher starts the job again."""
    if options.job_id:
        return options.job_id
    if start.run_id is not None:
        return f"{start.run_id}:{start.launcher}"
    return f"{socket.gethostname()}:{getpid()}:{time.time_ns()}"


def claim(options: Options, name: str, start: ElasticLaunch) -> Claim:
    """Chooses the next attempt in the job's directory, or a new directory; called on rank 0.

    Raises UserError if the requested directory belongs to another job or cannot be used.
    """
    job = new_job_id(options, start)
    if options.out:
        path = Path(on_this_machine(options.out)).absolute()
        there = _job_of(path)
        if there is not None and _is_same_job(path, there, job, start):
            return Claim(path, there, free_attempt(path))
        require_unused(path)
        return Claim(path, job, 0)
    if start.run_id is None and not options.job_id:  # no earlier run can be of this job
        return Claim(default_directory(name).absolute(), job, 0)
    again = start.restarts > 0 and start.run_id != _NO_ID
    for manifest in sorted(Path(RUNS_FOLDER).glob(f"{glob.escape(name)}-*/{MANIFEST_NAME}"), reverse=True):
        there = _job_of(manifest.parent)
        if there is not None and (there == job or (again and there.startswith(f"{start.run_id}:"))):
            path = manifest.parent.absolute()
            return Claim(path, there, free_attempt(path))
    return Claim(default_directory(name).absolute(), job, 0)


def _is_same_job(path: Path, there: str, job: str, start: ElasticLaunch) -> bool:
    """Whether this start continues the job in the directory. Its rank 0 may have been on another machine."""
    if there == job:
        return True
    if start.run_id is None:
        return False
    if any(header.launcher == start.launcher for header in _last_headers(path)):
        return True
    if not there.startswith(f"{start.run_id}:"):
        return False
    # either this machine has just joined the job, or a user has repeated the command of an earlier job
    return start.restarts > 0 or (start.run_id != _NO_ID and not _ended_well(path))


def require_same_job(path: Path, job: str) -> None:
    """Checks the directory of another rank, maybe on another machine. Raises UserError if it is of another job."""
    there = _job_of(path)
    if there is not None and there != job:
        raise UserError(f"run directory {path} is of another job")


def create(path: Path) -> None:
    """Makes a directory. Raises UserError if that fails."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot create run directory {path}: {error.strerror}; choose another --out") from None


def remove_unused(path: Path) -> None:
    """Removes a directory that was made for this job, if no rank has written to it."""
    if not _attempts(path):
        with contextlib.suppress(OSError):
            (path / MANIFEST_NAME).unlink(missing_ok=True)
            path.rmdir()


def write_manifest(manifest: Manifest, path: Path) -> None:
    """Writes the manifest. Raises UserError if the directory cannot be written to."""
    try:
        manifest.write(path)
    except OSError as error:
        raise UserError(f"cannot write to run directory {path}: {error.strerror}; choose another --out") from None


# -- what is there already --------------------------------------------------------------------------------------------


def free_attempt(path: Path) -> int:
    """The first attempt that has no folder here, and no later attempt has one either."""
    return max(_attempts(path), default=-1) + 1


def _attempts(path: Path) -> list[int]:
    numbers = (folder.name.removeprefix("attempt-") for folder in path.glob("attempt-*"))
    return [int(number) for number in numbers if number.isdecimal()]


def _job_of(path: Path) -> str | None:
    """The id of the directory's job; None if unknown.

    Taken from the manifest, or from a rank's file where rank 0 was on another machine.
    """
    try:
        return Manifest.read(path).job_id
    except (OSError, ValueError):
        return next((header.job_id for header in _last_headers(path) if header.job_id), None)


def _last_headers(path: Path) -> Iterator[RankHeader]:
    """The headers of the last attempt's ranks that can be read."""
    return filter(None, map(_header, path.glob(f"attempt-{free_attempt(path) - 1}/rank-*.jsonl")))


def is_of_this_process(path: Path, header: RankHeader) -> bool:
    """Whether the rank's file in this attempt was written by the process with this header."""
    there = _header(path / f"attempt-{header.attempt}" / f"rank-{header.rank}.jsonl")
    return there is not None and (there.pid, there.node_id) == (header.pid, header.node_id)


def _header(file: Path) -> RankHeader | None:
    try:
        return rank_ends.header_of(file)
    except (OSError, ValueError):
        return None


def _ended_well(path: Path) -> bool:
    """Whether rank 0 of the last attempt ended normally."""
    try:
        end = rank_ends.end_of(path / f"attempt-{free_attempt(path) - 1}" / "rank-0.jsonl")
    except OSError:
        return False
    return end is not None and end.status in GOOD_ENDS
