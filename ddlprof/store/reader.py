"""Finds the files of a run directory and puts them together: `load_run`."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from pathlib import Path

from ddlprof.model.errors import UserError
from ddlprof.model.manifest import MANIFEST_NAME, Manifest
from ddlprof.store.rankfile import LARGEST, read_rank
from ddlprof.store.tables import Note, RankData, RunData

DEFAULT_RUNS = Path("ddlprof-runs")
_RANK_FILES = "attempt-*/rank-*.jsonl"

_DAMAGE = (ValueError, TypeError, AttributeError, OverflowError)
"""What values of the wrong type or size in a damaged but well-formed file lead to."""

Progress = Callable[[int, int], None]
"""`progress(bytes read, bytes in all)`, called after each file."""


def load_run(path: str | Path, progress: Progress | None = None) -> RunData:
    """Reads the run directory `path`; raises UserError if there is no run that this version can read."""
    directory = Path(path)
    try:
        files = sorted(directory.glob(_RANK_FILES), key=_numbers)
        manifest, notes = _read_manifest(directory)
        if manifest is None and not files:
            reason = f"{notes[0].source}: {notes[0].message}" if notes else _why_no_run(directory)
            raise UserError(f"{directory}: {reason}")
        ranks, rank_notes = _read_ranks(files, progress)
    except OSError as error:
        raise UserError(f"{error.filename or directory}: cannot be read: {error.strerror or error}") from None
    _number_nodes(ranks)
    return RunData(directory, manifest, ranks, notes + rank_notes)


def _numbers(path: Path) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", f"{path.parent.name} {path.name}"))


def _read_manifest(directory: Path) -> tuple[Manifest | None, list[Note]]:
    try:
        manifest = Manifest.read(directory)
        if not 0 <= manifest.origin_unix_ns < LARGEST:
            raise ValueError("origin_unix_ns is damaged")
        return manifest, []
    except (FileNotFoundError, NotADirectoryError):
        return None, []
    except _DAMAGE as error:
        return None, [Note(MANIFEST_NAME, f"unreadable ({error}): the report is without what it says of the job")]


def _read_ranks(files: list[Path], progress: Progress | None) -> tuple[list[RankData], list[Note]]:
    ranks: list[RankData] = []
    notes: list[Note] = []
    total = sum(file.stat().st_size for file in files) if progress else 0
    done = 0
    for file in files:
        try:
            ranks.append(read_rank(file))
        except _DAMAGE as error:
            notes.append(
                Note(f"{file.parent.name}/{file.name}", f"unreadable ({error}): the report is without this rank")
            )
        if progress:
            done += file.stat().st_size
            progress(min(done, total), total)  # a running job's files grow
    ranks.sort(key=lambda r: (r.attempt, r.rank))
    return ranks, notes


def _number_nodes(ranks: list[RankData]) -> None:
    """Numbers the machines by the lowest rank on each; a machine keeps its number over restarts."""
    numbers: dict[str, int] = {}
    for rank in ranks:
        rank.node = numbers.setdefault(rank.header.node_id, len(numbers))


def _why_no_run(directory: Path) -> str:
    if directory.is_file():
        what = "is a file, not a run directory"
    elif directory.is_dir():
        what = "not a run directory (neither manifest.json nor attempt-*/rank-*.jsonl in it)"
    else:
        what = "no such run directory"
    inside = _runs_in(directory)
    known = inside or _runs_in(DEFAULT_RUNS)
    if not known:
        return f"{what}; make one with: ddlprof run SCRIPT"
    names = {run.name: run for run in known}
    close = [] if inside else difflib.get_close_matches(directory.name, names, n=1)
    if close:
        return f"{what}; did you mean {names[close[0]]}?"
    return f"{what}; the latest run is {known[-1]}"


def _runs_in(directory: Path) -> list[Path]:
    """Run directories in `directory`, the latest last."""
    if not directory.is_dir():
        return []
    runs = [d for d in directory.iterdir() if (d / MANIFEST_NAME).is_file() or any(d.glob(_RANK_FILES))]
    return sorted(runs, key=lambda d: d.stat().st_mtime_ns)
