"""Ranks that ended on a full disk: how they ended is the name of a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath

from ddlprof.model.records import Note
from ddlprof.model.unwritten_end import unwritten_end_of
from ddlprof.store.parts import RunPart
from ddlprof.store.tables import RankData

FULL = Note("end", "the disk was full when this rank ended: its last steps are missing")


def add_unwritten_ends(parts: Sequence[RunPart], ranks: Sequence[RankData]) -> None:
    """Gives ranks whose file says nothing of their end the one that a name tells, with a note."""
    silent = {(rank.attempt, rank.rank): rank for rank in ranks if rank.end is None}
    if not silent:
        return
    for part in parts:
        folders = {PurePosixPath(files.text).parent: files.attempt for files in part.ranks}
        for name in map(PurePosixPath, part.folder.files()):
            told = unwritten_end_of(name.name) if name.parent in folders else None
            rank = silent.get((folders[name.parent], told[0])) if told is not None else None
            if told is not None and rank is not None and rank.end is None:
                rank.end = told[1]
                rank.notes.append(FULL)
