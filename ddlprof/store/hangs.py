"""Reads what the ranks of a run wrote when they stood still, of the latest attempt."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ddlprof.base.reading import ReadingError
from ddlprof.model.hang import (
    HANG_SUFFIX,
    LAST_WORDS_SUFFIX,
    MAX_HANG_BYTES,
    RankState,
    aborted,
    decode_state,
    last_words,
)
from ddlprof.model.records import Note
from ddlprof.store.numbers import DAMAGE
from ddlprof.store.parts import NUMBER, RunPart

_SUFFIXES = "|".join(re.escape(suffix) for suffix in (HANG_SUFFIX, LAST_WORDS_SUFFIX))
_FILE = re.compile(
    rf"(?:(?P<part>[^/]+)/)?(?P<label>attempt-(?P<attempt>{NUMBER})/rank-(?P<rank>{NUMBER})(?P<suffix>{_SUFFIXES}))"
)


def read_standing(parts: Sequence[RunPart]) -> tuple[list[RankState], list[Note]]:
    """The states of the ranks of the latest attempt, and notes on files that cannot be read."""
    latest = max((files.attempt for part in parts for files in part.ranks), default=0)
    states: dict[int, RankState] = {}
    notes: list[Note] = []
    for part in parts:
        inside = part.ranks[0].text.rpartition("attempt-")[0].rstrip("/") if part.ranks else ""
        for name, size in sorted(part.folder.files().items(), reverse=True):  # states before last words
            match = _FILE.fullmatch(name)
            if not match or (match["part"] or "") != inside or int(match["attempt"]) != latest or not size:
                continue
            try:
                state = _state(part.folder.piece(name, 0, MAX_HANG_BYTES + 1), match, latest)
            except DAMAGE as error:
                notes.append(Note(match["label"], f"cannot be read: {error}"))
                continue
            if state.rank == int(match["rank"]) and state.attempt == latest:
                before = states.get(state.rank)
                states[state.rank] = state if before is None else aborted(before, state)
    return [states[rank] for rank in sorted(states)], notes


def _state(content: bytes | ReadingError, match: re.Match[str], attempt: int) -> RankState:
    if isinstance(content, ReadingError):
        raise content
    if match["suffix"] == HANG_SUFFIX:
        return decode_state(content)
    return last_words(int(match["rank"]), 1, attempt, content.decode(errors="replace"))
