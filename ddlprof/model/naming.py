"""Names of run directories, chosen the same way by the launcher and by the profiled process."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from itertools import count
from pathlib import Path

from ddlprof.model.errors import UserError

RUNS_FOLDER = "ddlprof-runs"


def default_directory(name: str, clock: Callable[[], datetime] = datetime.now) -> Path:
    """Creates and returns `ddlprof-runs/NAME-YYYYMMDD-HHMMSS` below the working directory.

    Runs that start in the same second get `-2`, `-3`, ...: creating the directory is what reserves the name.
    """
    first = Path(RUNS_FOLDER) / f"{name}-{clock():%Y%m%d-%H%M%S}"
    try:
        first.parent.mkdir(exist_ok=True)
        for number in count(1):
            directory = first if number == 1 else first.with_name(f"{first.name}-{number}")
            try:
                directory.mkdir()
                break
            except FileExistsError:
                continue
    except OSError as error:
        raise UserError(f"cannot create {first}: {error.strerror}; choose a directory with --out") from None
    return directory


def require_unused(directory: Path) -> None:
    """Raises UserError if `directory` holds anything already, or cannot be a directory."""
    try:
        used = any(directory.iterdir())
    except FileNotFoundError:
        return
    except OSError as error:
        raise UserError(f"cannot use {directory}: {error.strerror}; choose another directory with --out") from None
    if used:
        raise UserError(f"run directory {directory} exists already: choose another with --out, or remove it")
