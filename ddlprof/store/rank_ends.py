"""Ranks whose own file does not tell how they ended: their helper thread did not end with the script, or the disk was
full."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePosixPath

from ddlprof.base.reading import ReadingError
from ddlprof.model.records import Note
from ddlprof.model.unfinished import MAX_UNFINISHED_BYTES, UNFINISHED_SUFFIX, Unfinished, decode_unfinished
from ddlprof.model.unwritten_end import unwritten_end_of
from ddlprof.store.numbers import DAMAGE
from ddlprof.store.parts import NUMBER, RunPart
from ddlprof.store.tables import RankData

_NAME = rf"attempt-(?P<attempt>{NUMBER})/rank-(?P<rank>{NUMBER}){re.escape(UNFINISHED_SUFFIX)}"
_FILE = re.compile(rf"(?:(?P<part>[^/]+)/)?(?P<label>{_NAME})")
FULL = Note("end", "the disk was full when this rank ended: its last steps are missing")


def add_unfinished(parts: Sequence[RunPart], ranks: Sequence[RankData]) -> list[Note]:
    """Gives ranks without an end the one that they told elsewhere, and a note on what is missing of them.

    Returns notes on files that cannot be read.
    """
    notes: list[Note] = []
    open_ranks = {(rank.attempt, rank.rank): rank for rank in ranks if rank.end is None}
    for part in parts if open_ranks else ():
        inside = part.ranks[0].text.rpartition("attempt-")[0].rstrip("/") if part.ranks else ""
        for name in sorted(part.folder.files()):
            match = _FILE.fullmatch(name)
            if not match or (match["part"] or "") != inside:
                continue
            rank = open_ranks.get((int(match["attempt"]), int(match["rank"])))
            if rank is None:
                continue
            try:
                said = _read(part.folder.piece(name, 0, MAX_UNFINISHED_BYTES + 1))
            except DAMAGE as error:
                notes.append(Note(match["label"], f"cannot be read: {error}"))
                continue
            rank.end = said.end
            rank.notes.append(Note("helper", said.message))
    return notes


def _read(content: bytes | ReadingError) -> Unfinished:
    if isinstance(content, ReadingError):
        raise content
    return decode_unfinished(content)


def add_unwritten_ends(parts: Sequence[RunPart], ranks: Sequence[RankData]) -> None:
    """Gives ranks that ended on a full disk the end that the name of a file tells, with a note."""
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
