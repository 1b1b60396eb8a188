"""Reads the steps of runs of schema 2, which 0.1.0 wrote until November 2026: a line for each step, and a file with the
times of collectives that does not mark where a step begins. To be removed with the next release."""

from __future__ import annotations

from dataclasses import fields
from functools import partial
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from ddlprof.model.blocks import STEP_FIELDS
from ddlprof.model.codec import COLLECTIVES, REST
from ddlprof.model.records import MISSING, Aggregate, CollectiveTimes, Flush, Note
from ddlprof.store.collectives import signatures_of
from ddlprof.store.flushes import undamaged_parts
from ddlprof.store.lines import Head, Parsed, bulk, context_of, shapes_of, sort_lines
from ddlprof.store.numbers import DAMAGE, whole_numbers, whole_numbers_at_once
from ddlprof.store.parts import old_times_name
from ddlprof.store.rankfile import LARGEST_SUM, notes_of_damage, rank_of, sound_steps
from ddlprof.store.step_blocks import StepArrays
from ddlprof.store.tables import OPTIONAL_FIELDS, IntArray, RankData, column_default

_STEP = b'["s",'
_BEGIN, _END = len(STEP_FIELDS), len(STEP_FIELDS) + 1
"""Two columns after those of a step: begin and end of its sequence numbers among those of all steps."""
_TIMES = tuple(f.name for f in fields(CollectiveTimes))


def decode_old_rank(head: Head, text: bytes, times: bytes, name: str) -> RankData:
    """Decodes the files of one rank. Raises ValueError if the header does not name what is needed."""
    undamaged = undamaged_parts(text, head.columns)
    sound_times, problem = undamaged_times(times, undamaged.flushes)
    parsed = sort_lines(undamaged, head.columns)
    steps, seqs = _steps(parsed)
    context_of(parsed)  # counts its damaged lines
    if parsed.damaged or undamaged.lost_parts:
        sound_times, problem = b"", "not known of which step, as lines are damaged"
    arrays = _with_times(parsed, steps, seqs, _times_of(sound_times, head.columns.get(COLLECTIVES, ())))
    rank = rank_of(head.header, parsed, arrays, _sums(parsed))
    rank.notes += notes_of_damage(parsed, undamaged, name)
    if problem:
        message = f"{problem}: what ranks told each other is known only in part"
        if rank.untold is not None and rank.untold.any():
            first = rank.steps["step"][np.argmax(rank.untold)]
            message = f"{problem}: the communication of step {first} and later ones is not told apart"
        rank.notes.append(Note(old_times_name(name), message))
    return rank


def _steps(parsed: Parsed) -> tuple[IntArray, IntArray]:
    """A row for each step: its fields, and where its sequence numbers are in the second array."""
    names = parsed.columns.get("s", ())
    more = bool(names) and names[-1].endswith(REST)
    single = names[:-1] if more else names
    optional = OPTIONAL_FIELDS | (set(names) - set(STEP_FIELDS))
    text = "".join(f"{line}\n" for line in parsed.bulk["s"]).encode()
    try:
        table, seqs = whole_numbers_at_once(text, _STEP, single, optional, more)
    except DAMAGE:
        table, seqs = bulk(parsed, "s", partial(whole_numbers, names=single, optional=optional, more=more))
    columns = [_column(table, single, name) for name in STEP_FIELDS]
    steps = np.stack([*columns, table[:, -2], table[:, -1]]).T  # contiguous columns, as they are used so
    sound = sound_steps(steps[:, :_BEGIN])
    parsed.damaged += int(np.count_nonzero(~sound))
    return steps[sound], seqs


def _column(table: IntArray, names: tuple[str, ...], name: str) -> IntArray:
    if name in names:
        return table[:, names.index(name)]
    return np.full(len(table), column_default(name), dtype=np.int64)


def _times_of(data: bytes, names: tuple[str, ...]) -> NDArray[np.void]:
    """The collectives' file as a table with the columns `names`. A torn last row is dropped."""
    if not set(_TIMES) <= set(names):
        raise ValueError("the header does not name the columns of collectives")
    row = np.dtype([(name, "<u4") for name in names])
    return np.frombuffer(data[: len(data) - len(data) % row.itemsize], dtype=row)


def _with_times(parsed: Parsed, steps: IntArray, seqs: IntArray, times: NDArray[np.void]) -> StepArrays:
    """The steps with their collectives, up to the first step some of whose are missing: from there on, nobody knows
    which ones belong to a step.
    """
    found = signatures_of(steps, shapes_of(parsed))
    good = found.readable & (np.cumsum(found.lengths) <= len(times))
    until = len(good) if good.all() else int(np.argmin(good))
    counts = np.where(np.arange(len(steps)) < until, found.lengths, MISSING)  # no signature has so many
    of_seqs = steps[:, _END] - steps[:, _BEGIN], seqs
    return StepArrays(
        steps[:, :_BEGIN], *of_seqs, counts, times[: int(counts[:until].sum())], seq_begins=steps[:, _BEGIN]
    )


def _sums(parsed: Parsed) -> IntArray:
    """The sums that can be added up, as `step_blocks.sums_of` gives them."""
    kept: list[list[int]] = []
    names = [f.name for f in fields(Aggregate)]
    sums = dict.fromkeys(names, 0)
    for aggregate in parsed.of("a"):
        sums = {name: total + (getattr(aggregate, name) or 0) for name, total in sums.items()}
        if any(total >= LARGEST_SUM for name, total in sums.items() if name != "first_step"):
            parsed.damaged += 1
        else:
            kept.append([MISSING if (v := getattr(aggregate, name)) is None else v for name in names])
    return np.array(kept, dtype=np.int64).reshape(-1, len(names))


def undamaged_times(times: bytes, flushes: list[Flush]) -> tuple[bytes, str | None]:
    view, begin = memoryview(times), 0
    for flush in flushes:
        end = flush.collectives_bytes
        if end > len(times):
            return times[:begin], "cut short"
        if end < begin or crc32(view[begin:end]) != flush.collectives_crc32:
            return times[:begin], "damaged"
        begin = end
    return times, None
