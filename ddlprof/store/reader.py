"""Reads a whole run from its files: `load_run`."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from ddlprof.base.errors import UserError
from ddlprof.base.reading import ReadingError, parse_json
from ddlprof.base.text import without_credentials
from ddlprof.model.manifest import MANIFEST_NAME, MAX_MANIFEST_BYTES, Manifest, decode_manifest
from ddlprof.model.records import Note
from ddlprof.store.folder import open_folder
from ddlprof.store.hangs import read_standing
from ddlprof.store.lines import read_header
from ddlprof.store.numbers import DAMAGE
from ddlprof.store.parts import (
    RankFiles,
    RunPart,
    belongs_elsewhere,
    find_parts,
    of_one_job,
    without_copies,
)
from ddlprof.store.rank_ends import add_unfinished, add_unwritten_ends
from ddlprof.store.rankfile import decode_rank
from ddlprof.store.strides import align_strides
from ddlprof.store.tables import RankData, RunData

DEFAULT_RUNS = Path("ddlprof-runs")

_WITHOUT_RANK = ": the report is without this rank"
_WITHOUT_MANIFEST = ": the report is without what it says of the job"
_MAX_HEADER_BYTES = 1 << 20
"""The most bytes of a header, which usually has two thousand characters."""

Progress = Callable[[int, int], None]
"""Called after each rank with the bytes read so far and in all."""


def load_run(paths: str | Path | Sequence[str | Path], progress: Progress | None = None) -> RunData:
    """Reads a run directory, or the parts of a run in several; each may be a URL that fsspec can read.

    Raises UserError if there is no run that this version can read, or if the parts are of several runs.
    """
    named = [paths] if isinstance(paths, (str, Path)) else list(paths)
    try:
        parts = [part for path in named for part in parts_in(path)]
        manifest, manifest_in, notes = _read_manifests(parts)
        file_bytes = sum(files.size for part in parts for files in part.ranks)
        parts = without_copies(parts)
        with _without_collector():
            ranks, rank_notes = _read_ranks(parts, progress)
    except OSError as error:
        raise UserError(f"{error.filename or named[0]}: cannot be read: {error.strerror or error}") from None
    notes += rank_notes
    if len(parts) > 1:
        _require_one_job(parts, ranks, {manifest.job_id: manifest_in} if manifest else {})
        _require_one_world(ranks)
    try:
        ranks, manifest, foreign = of_one_job(ranks, manifest)
    except ValueError as error:
        raise UserError(f"{named[0]}: {error}") from None
    notes += foreign
    align_strides(ranks)
    add_unwritten_ends(parts, ranks)
    step = None
    if any(part.operators is not None for part in parts):
        from ddlprof.store.operators import read_operators  # not at the top: many cards are of runs without operators

        step, step_notes = read_operators(parts, manifest)
        notes += step_notes
    if manifest is None and not ranks:
        why = notes[0].message.removesuffix(_WITHOUT_RANK).removesuffix(_WITHOUT_MANIFEST)
        raise UserError(f"{named[0]}: nothing of it can be read: {notes[0].source}: {why}")
    _number_nodes(ranks)
    notes += add_unfinished(parts, ranks)
    standing, standing_notes = read_standing(parts)
    typed = tuple(without_credentials(str(each)) for each in named)
    return RunData(typed, manifest, ranks, notes + standing_notes, step, file_bytes, standing)


@contextmanager
def _without_collector() -> Iterator[None]:
    """Switches the garbage collector off, which would scan millions of short-lived lists without cycles."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def parts_in(path: str | Path) -> list[RunPart]:
    """The run directory itself, or those in a folder. Raises UserError if there is none."""
    parts = find_parts(path)
    if not parts:
        raise UserError(f"{path}: {why_no_run(path)}")
    return parts


def runs_in(paths: Sequence[str | Path]) -> list[list[str]]:
    """The directories of each run in `paths`, or in the folders named there.

    Directories with the same job id are parts of one run. A directory without a known job is a run of its own. Raises
    UserError for a path without any run.
    """
    runs: dict[str, list[str]] = {}
    for path in paths:
        for part in parts_in(path):
            names = runs.setdefault(job_id_of(part) or f"\0{part.name}", [])
            if part.name not in names:
                names.append(part.name)
    return list(runs.values())


def job_id_of(part: RunPart) -> str:
    """The job's id from the manifest or the first rank that can be read; empty if none has it."""
    if part.manifest is not None:
        with suppress(*DAMAGE):
            return decode_manifest(part.folder.piece(part.manifest, 0, MAX_MANIFEST_BYTES + 1)).job_id
    for files in part.ranks:
        begin = part.folder.piece(files.text, 0, _MAX_HEADER_BYTES)
        with suppress(*DAMAGE):
            if not isinstance(begin, ReadingError) and (job_id := _job_id_in(begin.partition(b"\n")[0])):
                return job_id
    return ""


def _job_id_in(line: bytes) -> str:
    value = parse_json(line)
    job_id = value.get("job_id") if isinstance(value, dict) else None
    return job_id if isinstance(job_id, str) else ""


def _read_manifests(parts: list[RunPart]) -> tuple[Manifest | None, str, list[Note]]:
    """The job's manifest, the name of its part, and notes.

    Rank 0 writes it, so usually one part has it. Two parts have it if another attempt's rank 0 was on another machine;
    the later one counts then.
    """
    manifest, of = None, ""
    notes: list[Note] = []
    for part in parts:
        if part.manifest is None:
            continue
        try:
            found = decode_manifest(next(part.folder.contents([part.manifest])))
        except ValueError as error:
            notes.append(Note(MANIFEST_NAME, f"unreadable ({error}){_WITHOUT_MANIFEST}"))
            continue
        if manifest is not None and manifest.job_id != found.job_id:
            raise UserError(f"{of} and {part.name} are of two jobs: name the directories of one")
        if manifest is None or found.created_unix_ns > manifest.created_unix_ns:
            manifest, of = found, part.name
    return manifest, of, notes


def _read_ranks(parts: list[RunPart], progress: Progress | None) -> tuple[list[RankData], list[Note]]:
    ranks: list[RankData] = []
    notes: list[Note] = []
    total = sum(files.size for part in parts for files in part.ranks)
    done = 0
    for files, text, steps in _contents(parts):
        try:
            rank = _rank(files, text, steps, notes)
        except DAMAGE as error:
            notes.append(Note(files.label, f"unreadable ({error}){_WITHOUT_RANK}"))
        else:
            elsewhere = belongs_elsewhere(files, rank.header)
            if elsewhere is None:
                ranks.append(rank)
            else:
                notes.append(elsewhere)
        if progress:
            done += files.size
            progress(done, total)
    ranks.sort(key=lambda r: (r.attempt, r.rank))
    return ranks, notes


def _contents(parts: list[RunPart]) -> Iterator[tuple[RankFiles, bytes | ReadingError, bytes | ReadingError]]:
    for part in parts:
        contents = part.folder.contents([name for files in part.ranks for name in files.names])
        for files in part.ranks:
            yield files, next(contents), b"" if files.steps is None else next(contents)


def _rank(files: RankFiles, text: bytes | ReadingError, steps: bytes | ReadingError, notes: list[Note]) -> RankData:
    if isinstance(text, ReadingError):
        raise text
    if isinstance(steps, ReadingError):
        notes.append(Note(files.steps_label, f"{steps}: what it holds of this rank's steps is not known"))
        steps = b""
    return decode_rank(read_header(text, files.label), text, steps, files.label)


def _require_one_job(parts: list[RunPart], ranks: list[RankData], jobs: dict[str, str]) -> None:
    """Raises UserError for parts of several jobs. `jobs`: a part for each known job.

    Some ranks were not told their job.
    """
    names = {(files.attempt, files.rank): part.name for part in parts for files in part.ranks}
    for rank in ranks:
        if rank.header.job_id:
            jobs.setdefault(rank.header.job_id, names.get((rank.attempt, rank.rank), f"rank {rank.rank}"))
    if len(jobs) > 1:
        one, two, *_ = jobs.values()
        raise UserError(f"{one} and {two} are of two jobs: name the directories of one")


def _require_one_world(ranks: list[RankData]) -> None:
    """Raises UserError unless the ranks of each attempt agree on their number."""
    worlds: dict[int, RankData] = {}
    for rank in ranks:
        other = worlds.setdefault(rank.attempt, rank)
        if rank.header.world_size != other.header.world_size:
            raise UserError(
                f"rank {other.rank} is of a job of {other.header.world_size} ranks and rank {rank.rank} of one of "
                f"{rank.header.world_size}: name the directories of one job"
            )


def _number_nodes(ranks: list[RankData]) -> None:
    """Numbers machines by their lowest rank. A machine keeps its number over restarts."""
    numbers: dict[str, int] = {}
    for rank in ranks:
        rank.node = numbers.setdefault(rank.header.node_id, len(numbers))


def why_no_run(path: str | Path) -> str:
    """One line that says what is there instead of a run, and what to do."""
    what = open_folder(path).missing()
    known = _runs_in(DEFAULT_RUNS)
    if not known:
        return f"{what}; make one with: ddlprof run SCRIPT"
    import difflib

    names = {run.name: run for run in known}
    close = difflib.get_close_matches(Path(path).name, names, n=1)
    return f"{what}; did you mean {names[close[0]]}?" if close else f"{what}; the latest run is {known[-1]}"


def _runs_in(directory: Path) -> list[Path]:
    """The run directories in `directory`, the latest last."""
    if not directory.is_dir():
        return []
    runs = [d for d in directory.iterdir() if d.is_dir() and any(part.name == str(d) for part in find_parts(d))]
    return sorted(runs, key=lambda d: d.stat().st_mtime_ns)
