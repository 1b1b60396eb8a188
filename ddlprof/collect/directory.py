"""Which run directory this job writes to, agreed on by all its ranks."""

from __future__ import annotations

import os
import socket
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from ddlprof.model.errors import UserError
from ddlprof.model.manifest import MANIFEST_NAME, Manifest
from ddlprof.model.naming import RUNS_FOLDER, default_directory, require_unused
from ddlprof.model.options import Options

_KEY = "run-directory"
_WAIT = timedelta(seconds=30)


def job_id(options: Options) -> str:
    """Equal for all ranks that one launcher started on this machine, and for its restarts."""
    if options.job_id:
        return options.job_id
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return f"{os.environ['TORCHELASTIC_RUN_ID']}:{socket.gethostname()}:{os.getppid()}"
    return f"{socket.gethostname()}:{os.getpid()}:{time.time_ns()}"


def choose(options: Options, name: str, job: str, attempt: int) -> Path:
    """Rank 0's choice. Raises UserError if the directory belongs to another job."""
    if options.out:
        path = Path(options.out).absolute()
        if not _is_of(path, job):
            require_unused(path)
        return path
    if attempt:
        for path in sorted(Path(RUNS_FOLDER).glob(f"*/{MANIFEST_NAME}"), reverse=True):
            if _is_of(path.parent, job):
                return path.parent.absolute()
    return default_directory(name).absolute()


def _is_of(path: Path, job: str) -> bool:
    try:
        return Manifest.read(path).job_id == job
    except (OSError, ValueError):
        return False


def create(path: Path) -> None:
    """Raises UserError where it cannot be made."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot create run directory {path}: {error.strerror}; choose another --out") from None


def job_store(dist: Any) -> Any:
    """The store that all ranks share, without what an earlier attempt left: torch's launcher may keep one for all."""
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return dist.PrefixStore(f"ddlprof/attempt-{attempt}", dist.distributed_c10d._get_default_store())


def publish(dist: Any, path: Path) -> None:
    """Rank 0 tells the others, through the job's own store."""
    job_store(dist).set(_KEY, str(path))


def await_published(dist: Any) -> Path | None:
    """What rank 0 published; None if it did not in time."""
    store = job_store(dist)
    try:
        store.wait([_KEY], _WAIT)
        return Path(store.get(_KEY).decode())
    except Exception:  # rank 0 is not profiled, or the store is of a kind that has no wait
        return None


def write_manifest(manifest: Manifest, path: Path) -> None:
    """Raises UserError where the directory cannot be written to."""
    try:
        manifest.write(path)
    except OSError as error:
        raise UserError(f"cannot write to run directory {path}: {error.strerror}; choose another --out") from None
