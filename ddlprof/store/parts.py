"""Finds the files that make up one run: those of a run directory, or of several parts of a run.

In a job without a shared file system each rank writes on its own machine, into a directory with part of the run. Parts
are put together if nothing contradicts it; files of two jobs are refused. The header of each file is compared with its
name, with the manifest and with the other ranks. A file that was copied there from another run is left out, with a
note.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from ddlprof.base.errors import UserError
from ddlprof.base.reading import ReadingError
from ddlprof.base.units import count
from ddlprof.model.manifest import MANIFEST_NAME, OPERATORS_NAME, Manifest
from ddlprof.model.records import Note, RankHeader
from ddlprof.store.folder import Folder, open_folder
from ddlprof.store.tables import RankData

NUMBER = "(?:0|[1-9][0-9]{0,8})"
"""The number of an attempt or a rank in names: no leading zeros, so that each rank has one name."""
_RANK_FILE = re.compile(rf"(?:(?P<part>[^/]+)/)?attempt-(?P<attempt>{NUMBER})/rank-(?P<rank>{NUMBER})\.jsonl")
_MANIFEST = re.compile(rf"(?:(?P<part>[^/]+)/)?{re.escape(MANIFEST_NAME)}")


def label_of(attempt: int, rank: int) -> str:
    """The name of a rank's file in messages."""
    return f"attempt-{attempt}/rank-{rank}.jsonl"


def steps_name(text: str) -> str:
    """The name of the file of steps that belongs to a rank's text file."""
    return text.removesuffix(".jsonl") + ".steps"


@dataclass(frozen=True)
class RankFiles:
    """The files of one rank of one attempt, by their paths in the folder."""

    attempt: int
    rank: int
    text: str
    steps: str | None
    """The path of the file of steps; None if the rank has none."""
    size: int
    """The size of both files in bytes."""
    text_size: int = 0
    """The size of the text alone in bytes."""

    @property
    def names(self) -> list[str]:
        """The paths of the files that exist."""
        return [self.text] if self.steps is None else [self.text, self.steps]

    @property
    def label(self) -> str:
        """The name of the text file in messages."""
        return label_of(self.attempt, self.rank)

    @property
    def steps_label(self) -> str:
        """The name of the other file in messages."""
        return steps_name(self.label)


@dataclass(frozen=True)
class RunPart:
    """One directory with a whole run, or with the files of some of its ranks."""

    name: str
    """The directory as the user would type it."""
    folder: Folder
    manifest: str | None
    ranks: list[RankFiles]
    operators: str | None = None
    """The path of the file with the operators of a step."""


def find_parts(path: str | Path) -> list[RunPart]:
    """The directory itself if it is a run's, otherwise the run directories in it (maybe none)."""
    folder = open_folder(path)
    files = folder.files()
    matches = [match for name in files for match in [_RANK_FILE.fullmatch(name) or _MANIFEST.fullmatch(name)] if match]
    names = {match["part"] or "" for match in matches}
    return [_part(str(path), name, folder, files) for name in ([""] if "" in names else sorted(names))]


def _part(path: str, name: str, folder: Folder, files: dict[str, int]) -> RunPart:
    ranks: list[RankFiles] = []
    for text, size in files.items():
        match = _RANK_FILE.fullmatch(text)
        if match and (match["part"] or "") == name:
            number, steps = (int(match["attempt"]), int(match["rank"])), steps_name(text)
            there = steps if steps in files else None
            ranks.append(RankFiles(*number, text, there, size + files.get(steps, 0), size))
    ranks.sort(key=_key)
    manifest, operators = (f"{name}/{file}" if name else file for file in (MANIFEST_NAME, OPERATORS_NAME))
    shown = f"{path.rstrip('/')}/{name}" if name else path
    return RunPart(
        shown, folder, manifest if manifest in files else None, ranks, operators if operators in files else None
    )


def _key(files: RankFiles) -> tuple[int, int]:
    return files.attempt, files.rank


def without_copies(parts: Sequence[RunPart]) -> list[RunPart]:
    """The parts with the files of each rank in one of them only. Of two copies of a file the longer one is kept.

    Raises UserError if two parts have different files of the same rank.
    """
    kept: dict[tuple[int, int], tuple[RunPart, RankFiles]] = {}
    for part in parts:
        for files in part.ranks:
            other = kept.get(_key(files))
            if other is not None:
                _require_copies(other, (part, files))
            if other is None or other[1].size < files.size:
                kept[_key(files)] = (part, files)
    return [replace(part, ranks=[f for f in part.ranks if kept[_key(f)] == (part, f)]) for part in parts]


def _require_copies(*found: tuple[RunPart, RankFiles]) -> None:
    """Raises UserError unless one file is a beginning of the other, as files only grow."""
    for one, two in zip(*(part.folder.contents(files.names) for part, files in found), strict=False):
        if isinstance(one, ReadingError) or isinstance(two, ReadingError):
            return  # an error is reported when they are read
        if not one.startswith(two) and not two.startswith(one):
            names = " and ".join(part.name for part, _ in found)
            raise UserError(f"{names} have different files {found[0][1].label}: name the directories of one job")


_Value = TypeVar("_Value", str, int)


def belongs_elsewhere(files: RankFiles, header: RankHeader) -> Note | None:
    """Why a file belongs under another name; None if its name is right."""
    if (header.attempt, header.rank) == (files.attempt, files.rank):
        return None
    whose = f"rank {header.rank}" if header.attempt == files.attempt else f"attempt {header.attempt}"
    return Note(files.label, f"belongs to {whose} and is left out")


def of_one_job(ranks: list[RankData], manifest: Manifest | None) -> tuple[list[RankData], Manifest | None, list[Note]]:
    """The ranks of one job and its manifest, and notes on what was left out.

    The job is the manifest's if any rank agrees; otherwise that of most ranks, of at least two, or without a manifest
    of the lowest rank. A file of a rank that was not told its job fits any. Raises ValueError if no job can be
    determined.
    """
    notes: list[Note] = []
    jobs = Counter(rank.header.job_id for rank in ranks if rank.header.job_id)
    job = _usual(jobs, manifest.job_id if manifest else "")
    if manifest is not None and manifest.job_id in jobs:
        job = manifest.job_id
    elif manifest is not None and jobs:
        if jobs[job] < 2:
            first = label_of(ranks[0].attempt, ranks[0].rank)
            raise ValueError(f"{MANIFEST_NAME} and {first} are of two jobs: remove the one that is wrong")
        notes.append(Note(MANIFEST_NAME, "belongs to another job than the ranks' files and is left out"))
        manifest = None
    kept = []
    for rank in ranks:
        if rank.header.job_id in ("", job):
            kept.append(rank)
        else:
            notes.append(Note(label_of(rank.attempt, rank.rank), "belongs to another job and is left out"))
    return _of_one_world(kept, manifest, notes), manifest, notes


def _of_one_world(ranks: list[RankData], manifest: Manifest | None, notes: list[Note]) -> list[RankData]:
    """The ranks that agree on their number. Ranks of one start of a job do."""
    kept = []
    worlds: dict[int, int] = {}
    for attempt in {rank.attempt for rank in ranks}:
        sizes = [rank.header.world_size for rank in ranks if rank.attempt == attempt]
        worlds[attempt] = _usual(Counter(sizes), manifest.world_size if manifest else sizes[0])
    for rank in ranks:
        size = rank.header.world_size
        if size != worlds[rank.attempt]:
            notes.append(
                Note(label_of(rank.attempt, rank.rank), f"belongs to a job of {count(size, 'rank')} and is left out")
            )
        elif size > 1 and rank.rank >= size:
            text = f"cannot belong to a job of {count(size, 'rank')} and is left out"
            notes.append(Note(label_of(rank.attempt, rank.rank), text))
        else:
            kept.append(rank)
    return kept


def _usual(counts: Counter[_Value], decisive: _Value) -> _Value:
    """The most frequent value. Of several, the decisive one if it is among them, else the first."""
    most = max(counts.values(), default=0)
    usual = [value for value, count in counts.items() if count == most]
    return decisive if decisive in usual or not usual else usual[0]
