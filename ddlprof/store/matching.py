"""Whether the files in a run directory are of one job: the header of each is compared with its name, with the manifest
and with the other ranks. A file that was copied there from elsewhere is left out and named, never mixed in."""

from __future__ import annotations

from collections import Counter
from typing import TypeVar

from ddlprof.model.manifest import MANIFEST_NAME, Manifest
from ddlprof.model.records import Note, RankHeader
from ddlprof.store.parts import RankFiles, label_of
from ddlprof.store.tables import RankData

_Value = TypeVar("_Value", str, int)


def belongs_elsewhere(files: RankFiles, header: RankHeader) -> Note | None:
    """What is wrong with a file that should have another name; None if it is where it belongs."""
    if (header.attempt, header.rank) == (files.attempt, files.rank):
        return None
    whose = f"rank {header.rank}" if header.attempt == files.attempt else f"attempt {header.attempt}"
    return Note(files.label, f"belongs to {whose} and is left out")


def of_one_job(ranks: list[RankData], manifest: Manifest | None) -> tuple[list[RankData], Manifest | None, list[Note]]:
    """The ranks of the job and its manifest, and what was left out.

    The manifest tells which job it is if any rank agrees; otherwise most of the ranks do, at least two, or without a
    manifest the lowest one. A file whose rank was not told the job counts for any. Raises ValueError if nothing tells.
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
    """The ranks that agree on how many they are, as those of one start of a job do."""
    kept = []
    worlds: dict[int, int] = {}
    for attempt in {rank.attempt for rank in ranks}:
        sizes = [rank.header.world_size for rank in ranks if rank.attempt == attempt]
        worlds[attempt] = _usual(Counter(sizes), manifest.world_size if manifest else sizes[0])
    for rank in ranks:
        size = rank.header.world_size
        if size != worlds[rank.attempt]:
            notes.append(Note(label_of(rank.attempt, rank.rank), f"belongs to a job of {_ranks(size)} and is left out"))
        elif size > 1 and rank.rank >= size:
            text = f"cannot belong to a job of {_ranks(size)} and is left out"
            notes.append(Note(label_of(rank.attempt, rank.rank), text))
        else:
            kept.append(rank)
    return kept


def _ranks(count: int) -> str:
    return f"{count} rank{'' if count == 1 else 's'}"


def _usual(counts: Counter[_Value], decisive: _Value) -> _Value:
    """The value that most have; of several, the decisive one if it is among them, or else the first."""
    most = max(counts.values(), default=0)
    usual = [value for value, count in counts.items() if count == most]
    return decisive if decisive in usual or not usual else usual[0]
