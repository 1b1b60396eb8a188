"""Puts the files of a run together: `load_run`."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ddlprof.model.errors import UserError
from ddlprof.model.manifest import MANIFEST_NAME, Manifest
from ddlprof.model.records import Note
from ddlprof.store.folder import open_folder
from ddlprof.store.numbers import DAMAGE, LARGEST
from ddlprof.store.parts import Part, RankFiles, find_parts, without_copies
from ddlprof.store.rankfile import decode_rank
from ddlprof.store.tables import RankData, RunData

DEFAULT_RUNS = Path("ddlprof-runs")

_DAMAGE = (ValueError, TypeError, AttributeError, OverflowError)
"""What values of the wrong type or size in a damaged but well-formed file lead to."""

Progress = Callable[[int, int], None]
"""`progress(bytes read, bytes in all)`, called after each rank."""


def load_run(paths: str | Path | Sequence[str | Path], progress: Progress | None = None) -> RunData:
    """Reads a run directory, or the parts of a run in several; a URL of fsspec's is one too.

    Raises UserError if there is no run that this version can read, or if the parts are of several runs.
    """
    named = [paths] if isinstance(paths, (str, Path)) else list(paths)
    try:
        parts = [part for path in named for part in _parts_in(path)]
        manifest, manifest_in, notes = _read_manifests(parts)
        if manifest is None and not any(part.ranks for part in parts):
            raise UserError(f"{named[0]}: {notes[0].source}: {notes[0].message}")
        parts = without_copies(parts)
        ranks, rank_notes = _read_ranks(parts, progress)
    except OSError as error:
        raise UserError(f"{error.filename or named[0]}: cannot be read: {error.strerror or error}") from None
    if len(parts) > 1:
        _require_one_job(parts, ranks, {manifest.job_id: manifest_in} if manifest else {})
        _require_one_world(ranks)
    _number_nodes(ranks)
    return RunData(tuple(map(str, named)), manifest, ranks, notes + rank_notes)


def _parts_in(path: str | Path) -> list[Part]:
    parts = find_parts(path)
    if not parts:
        raise UserError(f"{path}: {_why_no_run(path)}")
    return parts


def _read_manifests(parts: list[Part]) -> tuple[Manifest | None, str, list[Note]]:
    """The job's manifest and the name of its part.

    Rank 0 writes it, so of several parts one has it, or two where another attempt's rank 0 was on another machine:
    then the later one counts.
    """
    manifest, of = None, ""
    notes: list[Note] = []
    for part in parts:
        if part.manifest is None:
            continue
        try:
            found = Manifest.decode(b"".join(part.folder.contents([part.manifest])))
            if not all(0 <= time_ns < LARGEST for time_ns in (found.origin_unix_ns, found.created_unix_ns)):
                raise ValueError("its times are damaged")
            if not isinstance(found.job_id, str):
                raise ValueError("job_id is damaged")
        except _DAMAGE as error:
            notes.append(Note(MANIFEST_NAME, f"unreadable ({error}): the report is without what it says of the job"))
            continue
        if manifest is not None and manifest.job_id != found.job_id:
            raise UserError(f"{of} and {part.name} are of two jobs: name the directories of one")
        if manifest is None or found.created_unix_ns > manifest.created_unix_ns:
            manifest, of = found, part.name
    return manifest, of, notes


def _read_ranks(parts: list[Part], progress: Progress | None) -> tuple[list[RankData], list[Note]]:
    ranks: list[RankData] = []
    notes: list[Note] = []
    total = sum(files.size for part in parts for files in part.ranks)
    done = 0
    for files, text, times in _contents(parts):
        try:
            ranks.append(decode_rank(text, times, files.label))
        except DAMAGE as error:
            notes.append(Note(files.label, f"unreadable ({error}): the report is without this rank"))
        if progress:
            done += files.size
            progress(done, total)
    ranks.sort(key=lambda r: (r.attempt, r.rank))
    return ranks, notes


def _contents(parts: list[Part]) -> Iterator[tuple[RankFiles, bytes, bytes]]:
    for part in parts:
        contents = part.folder.contents([name for files in part.ranks for name in files.names])
        for files in part.ranks:
            yield files, next(contents), b"" if files.times is None else next(contents)


def _require_one_job(parts: list[Part], ranks: list[RankData], jobs: dict[str, str]) -> None:
    """`jobs`: a part for each job that is known already. Files of older versions do not tell theirs."""
    names = {(files.attempt, files.rank): part.name for part in parts for files in part.ranks}
    for rank in ranks:
        if rank.header.job_id:
            jobs.setdefault(rank.header.job_id, names.get((rank.attempt, rank.rank), f"rank {rank.rank}"))
    if len(jobs) > 1:
        one, two, *_ = jobs.values()
        raise UserError(f"{one} and {two} are of two jobs: name the directories of one")


def _require_one_world(ranks: list[RankData]) -> None:
    """Ranks of one start of a job agree on how many they are."""
    worlds: dict[int, RankData] = {}
    for rank in ranks:
        other = worlds.setdefault(rank.attempt, rank)
        if rank.header.world_size != other.header.world_size:
            raise UserError(
                f"rank {other.rank} is of a job of {other.header.world_size} ranks and rank {rank.rank} of one of "
                f"{rank.header.world_size}: name the directories of one job"
            )


def _number_nodes(ranks: list[RankData]) -> None:
    """Numbers the machines by the lowest rank on each; a machine keeps its number over restarts."""
    numbers: dict[str, int] = {}
    for rank in ranks:
        rank.node = numbers.setdefault(rank.header.node_id, len(numbers))


def _why_no_run(path: str | Path) -> str:
    what = open_folder(path).missing()
    known = _runs_in(DEFAULT_RUNS)
    if not known:
        return f"{what}; make one with: ddlprof run SCRIPT"
    names = {run.name: run for run in known}
    close = difflib.get_close_matches(Path(path).name, names, n=1)
    return f"{what}; did you mean {names[close[0]]}?" if close else f"{what}; the latest run is {known[-1]}"


def _runs_in(directory: Path) -> list[Path]:
    """Run directories in `directory`, the latest last."""
    if not directory.is_dir():
        return []
    runs = [d for d in directory.iterdir() if d.is_dir() and any(part.name == str(d) for part in find_parts(d))]
    return sorted(runs, key=lambda d: d.stat().st_mtime_ns)
