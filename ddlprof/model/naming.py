"""Names of run directories, chosen the same way by the launcher and by the profiled process."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ddlprof.base.errors import UserError

if TYPE_CHECKING:
    from datetime import datetime

RUNS_FOLDER = "ddlprof-runs"
BEGUN = re.compile(r"-(\d{8}-\d{6})(?:-(\d+))?$")
"""The end of a name that `default_directory` made: when it was, and the number among those of the same second."""
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
"""The beginning of a URL, also with one slash, as pathlib writes it. Drives of Windows have one letter only."""
_Place = TypeVar("_Place", str, Path, None)


def default_directory(name: str, clock: Callable[[], datetime] | None = None) -> Path:
    """Creates and returns `ddlprof-runs/NAME-YYYYMMDD-HHMMSS` below the working directory.

    Runs that start in the same second get `-2`, `-3`, ...: creating the directory is what reserves the name.
    """
    if clock is None:
        from datetime import datetime  # not at the top: every command imports this file

        clock = datetime.now
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


def on_this_machine(place: _Place) -> _Place:
    """The place itself if it is no URL. Raises UserError for a URL, which would otherwise become a folder's name."""
    if place is not None and _URL.match(str(place)):
        raise UserError(f"{place}: is a URL: name a directory of this machine, and copy it there afterwards")
    return place


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
