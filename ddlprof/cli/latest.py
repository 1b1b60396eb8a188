"""The runs that arguments mean: `last` and `last~1` are the latest below `ddlprof-runs`, and the one before."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import typer

from ddlprof.base.errors import UserError, complain
from ddlprof.model.naming import BEGUN, RUNS_FOLDER

_LAST = re.compile(r"last(?:~(\d{1,6}))?")
_HELP = f" last, last~1, ...: the latest below {RUNS_FOLDER}, and those before it"


def run_argument(help: str, metavar: str = "RUN...", default: Sequence[str] = ("last",)) -> Any:
    """The argument of a command that reads runs; `default`: those that are meant where none is named."""

    def named(texts: list[str] | str | None) -> list[str] | str:
        if isinstance(texts, str):
            return run_named(texts)
        if not texts:
            return [run_named(text) for text in default]
        return [run_named(text) for text in texts]

    return typer.Argument(metavar=metavar, help=f"{help}{_HELP} [{' '.join(default)}].", callback=named)


def run_named(text: str) -> str:
    """The path that a text means; a line on stderr says which run `last` is.

    Raises UserError where there are not as many runs. A file or folder of that name goes first.
    """
    if not text:
        raise UserError("the name of a run is empty, as of a variable that is not set: name a run directory")
    found = _LAST.fullmatch(text)
    if found is None or os.path.lexists(text):
        return text
    back, runs = int(found[1] or 0), _latest(Path(RUNS_FOLDER))
    if back >= len(runs):
        count = f"no run is below {RUNS_FOLDER}/" if not runs else f"only {len(runs)} below {RUNS_FOLDER}/"
        raise UserError(f"{text}: {count}; name a run directory, or make one with: ddlprof run SCRIPT")
    run = str(runs[back])
    complain(f"{text} is {run}")
    return run


def _latest(folder: Path) -> list[Path]:
    """The run directories, the one that began last first."""
    try:
        inside = [entry.name for entry in os.scandir(folder) if entry.is_dir()]
    except OSError:
        return []
    begun = [(*when, name) for name in inside if (when := _began(folder / name))]
    return [folder / name for *_, name in sorted(begun, reverse=True)]


def _began(run: Path) -> tuple[str, int] | None:
    """When a run began, by its name, or by its manifest where --out named it; None: it is no run."""
    if found := BEGUN.search(run.name):
        return found[1], int(found[2] or 1)
    from ddlprof.model.manifest import MANIFEST_NAME

    try:
        created_ns = json.loads((run / MANIFEST_NAME).read_bytes())["created_unix_ns"]
        return f"{datetime.fromtimestamp(created_ns / 1e9):%Y%m%d-%H%M%S}", 1
    except (OSError, ValueError, TypeError, KeyError, OverflowError):
        return None
