"""Decodes the two files of one rank: `rank-N.jsonl` and `rank-N.collectives`.

What comes by the thousand is parsed all at once; if that fails, line by line, and what is damaged is dropped.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass
from functools import partial
from itertools import compress
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ddlprof.model import codec
from ddlprof.model.errors import UserError
from ddlprof.model.places import Place
from ddlprof.model.records import MISSING, SCHEMA_VERSION, CollectiveShape, CollectiveTimes, LookingCost, RankHeader
from ddlprof.store.tables import (
    CLASS_FIELDS,
    CONTEXT_FIELDS,
    STEP_FIELDS,
    CollectiveTable,
    ContextTable,
    FloatArray,
    IntArray,
    Note,
    RankData,
    StepTable,
)

_Number = TypeVar("_Number", np.int64, np.float64)

LARGEST = 2**62
"""No time of ours is as large; two of them can be added as 64-bit integers."""

_TIMES = np.dtype([(f.name, "<u4") for f in fields(CollectiveTimes)])
_DAMAGE = (ValueError, TypeError, OverflowError)
_CLASS_COLUMNS = [STEP_FIELDS.index(name) for name in CLASS_FIELDS]
_STEP_COLUMN = STEP_FIELDS.index("step_ns")
_BULK = ("s", "c", "k")
"""Kinds of lines that hold numbers only and come by the thousand: parsed all at once."""


@dataclass
class _Parsed:
    """The lines of a file by kind. `trusted` counts the step lines before the first damage."""

    bulk: dict[str, list[str]] = field(default_factory=lambda: {tag: [] for tag in _BULK})
    steps_before: dict[str, list[int]] = field(default_factory=lambda: {tag: [] for tag in _BULK})
    """For each line of `bulk`: how many step lines come before it."""
    records: dict[str, list[Any]] = field(default_factory=dict)
    damaged: int = 0
    trusted: int | None = None

    def damage(self, trusted: int) -> None:
        self.damaged += 1
        self.trusted = trusted if self.trusted is None else min(self.trusted, trusted)

    def damage_bulk(self, tag: str, index: int) -> None:
        self.damage(self.steps_before[tag][index])


def decode_rank(text: bytes, times: bytes, name: str) -> RankData:
    """Decodes the files of one rank; `name` is for messages. Raises ValueError if not even its header can be read."""
    # A line without its line end is torn: the process was killed while writing it.
    lines = text.decode("utf-8", errors="replace").split("\n")[:-1]
    if not lines:
        raise ValueError("the file has no header")
    header = codec.decode_header(lines[0])
    _check_header(header, name)
    parsed = _sort_lines(lines[1:])
    steps = _steps(parsed)
    get = parsed.records.get
    rank = RankData(header, StepTable(steps[:, : len(STEP_FIELDS)]))
    rank.aggregates = get("a", [])
    rank.context = _context(parsed)
    rank.windows = get("w", [])
    rank.calibration = get("b", [])
    rank.clock_readings = get("t", [])
    rank.looking = _looking(parsed)
    rank.loader_costs = get("d", [])
    rank.losses = list({(loss.source, loss.many): loss for loss in get("u", [])}.values())  # they are cumulative
    rank.end = get("e", [None])[-1]
    rank.samples = _samples(get("l", []), [*get("o", []), *get("q", [])])
    rank.notes = [Note(str(hook), str(message)) for hook, message in (n for n in get("n", []) if len(n) == 2)]
    if parsed.damaged:
        plural = "s" if parsed.damaged > 1 else ""
        rank.notes.append(Note(name, f"{parsed.damaged} damaged line{plural} left out"))
    # The binary file has no marks of its own: after a lost line nobody knows which times belong to which step.
    trusted = steps[: parsed.trusted]
    packed = _pack(rank.steps["signature"][: len(trusted)], trusted[:, len(STEP_FIELDS) :], dict(get("g", [])), times)
    rank.expand, rank.collectives_until = packed.expand, len(packed.code)
    return rank


def _check_header(header: RankHeader, name: str) -> None:
    numbers = (header.rank, header.world_size, header.attempt, header.origin_ns, header.origin_unix_ns, header.schema)
    if not all(isinstance(n, int) and 0 <= n < LARGEST for n in numbers):
        raise ValueError("the header is damaged")
    if not all(isinstance(text, str) for text in (header.host, header.node_id, header.job_id)):
        raise ValueError("the header is damaged")
    if header.schema > SCHEMA_VERSION:
        raise UserError(f"{name}: written by a newer ddlprof (schema {header.schema}): upgrade ddlprof to read it")


def _sort_lines(lines: list[str]) -> _Parsed:
    parsed = _Parsed()
    prefixes = {f'["{tag}",': tag for tag in _BULK}
    step_lines = parsed.bulk["s"]
    for line in lines:
        tag = prefixes.get(line[:5])
        if tag is not None:
            parsed.steps_before[tag].append(len(step_lines))
            parsed.bulk[tag].append(line)
            continue
        try:
            tag, record = codec.decode(line)
            for part in record[1] if tag == "g" else [record]:
                _check_types(part)
        except ValueError:
            parsed.damage(len(step_lines))
        else:
            parsed.records.setdefault(tag, []).append(record)
    return parsed


def _check_types(record: Any) -> None:
    """Raises ValueError unless every field of a record has its declared type, and a size that can be added up."""
    for field_ in fields(record) if is_dataclass(record) else ():
        value = getattr(record, field_.name)
        declared = str(field_.type).split(" | ")  # annotations are text in `ddlprof.model.records`
        if value is None:
            good = "None" in declared
        elif isinstance(value, str):
            good = "str" in declared
        else:
            good = isinstance(value, (int, float)) and "str" not in declared and abs(value) < LARGEST
        if not good:
            raise ValueError(f"{field_.name} is damaged")


def _bulk(parsed: _Parsed, tag: str, parse: Callable[[list[str]], NDArray[_Number]]) -> NDArray[_Number]:
    """A row a line. Damaged lines are noted in `parsed` and taken out of it."""
    lines = parsed.bulk[tag]
    try:
        return parse(lines)
    except _DAMAGE:
        good = [_parses(line, parse) for line in lines]
    for index in np.flatnonzero(~np.array(good)).tolist():
        parsed.damage_bulk(tag, index)
    parsed.bulk[tag] = list(compress(lines, good))
    parsed.steps_before[tag] = list(compress(parsed.steps_before[tag], good))
    return parse(parsed.bulk[tag])


def _parses(line: str, parse: Callable[[list[str]], NDArray[_Number]]) -> bool:
    try:
        parse([line])
    except _DAMAGE:
        return False
    return True


def _sound(parsed: _Parsed, tag: str, rows: NDArray[_Number], sound: NDArray[np.bool_]) -> NDArray[_Number]:
    for bad in np.flatnonzero(~sound).tolist():
        parsed.damage_bulk(tag, bad)
    return rows[sound]


def _number_rows(lines: list[str], null: str) -> list[list[Any]]:
    # These lines hold no text but their tag, so null can be replaced in the text, which is faster than in the lists.
    text = ",".join(lines)
    rows: list[list[Any]] = json.loads("[" + text.replace("null", null) + "]")
    if len(rows) != len(lines) or text.count('"') != 2 * len(lines):
        raise ValueError("not one list of numbers a line")
    return rows


def _steps(parsed: _Parsed) -> IntArray:
    """A row a step: the fields, then the sequence numbers."""
    steps = _bulk(parsed, "s", _parse_steps)
    # Numbers that can be: nothing below MISSING, and the classes add up to the step.
    classes = np.maximum(steps[:, _CLASS_COLUMNS], 0).sum(axis=1)
    sound: NDArray[np.bool_] = (steps >= MISSING).all(axis=1) & (classes == steps[:, _STEP_COLUMN])
    return _sound(parsed, "s", steps, sound)


def _parse_steps(lines: list[str]) -> IntArray:
    rows = _number_rows(lines, str(MISSING))
    if any(len(row) <= len(STEP_FIELDS) for row in rows):
        raise ValueError("not one whole step a line")
    width = max(map(len, rows), default=1 + len(STEP_FIELDS))
    padded = [row[1:] + [MISSING] * (width - len(row)) for row in rows]
    return np.array(padded, dtype=np.int64).reshape(-1, width - 1)


def _context(parsed: _Parsed) -> ContextTable:
    rows = _bulk(parsed, "c", partial(_parse_floats, width=len(CONTEXT_FIELDS)))
    sound: NDArray[np.bool_] = (np.isnan(rows) | (np.abs(rows) < LARGEST)).all(axis=1) & ~np.isnan(rows[:, 0])
    return ContextTable(_sound(parsed, "c", rows, sound))


def _looking(parsed: _Parsed) -> LookingCost | None:
    rows = _bulk(parsed, "k", partial(_parse_floats, width=len(fields(LookingCost))))
    rows = _sound(parsed, "k", rows, np.asarray((np.abs(rows) < LARGEST).all(axis=1)))
    return LookingCost(*map(int, rows[-1])) if len(rows) else None  # they are cumulative


def _parse_floats(lines: list[str], width: int) -> FloatArray:
    rows = [row[1:] for row in _number_rows(lines, "NaN")]
    return np.array(rows, dtype=np.float64).reshape(len(rows), width)


def _samples(places: list[Any], lines: list[tuple[Any, dict[Any, Any]]]) -> list[tuple[int | None, Place, int]]:
    known = {place[0]: Place(*map(str, place[1:3])) for place in places if len(place) > 1}
    unknown = Place("unknown line")
    return [(step, known.get(number, unknown), count) for step, counts in lines for number, count in counts.items()]


@dataclass(frozen=True)
class _Packed:
    """The collectives of one rank as they are on disk, and what expands them: `code` has a signature for each step."""

    shapes: list[CollectiveShape]
    spans: list[IntArray]
    code: IntArray
    first_seqs: IntArray
    times: NDArray[np.void]

    def expand(self) -> CollectiveTable:
        lengths = np.array([len(span) for span in self.spans], dtype=np.int64)
        length = lengths[self.code]
        row = np.repeat(np.arange(len(length)), length)
        if not len(row):
            return CollectiveTable.empty()
        first_of_step, first_of_span = np.cumsum(length) - length, np.cumsum(lengths) - lengths
        place = np.arange(len(row)) + np.repeat(first_of_span[self.code] - first_of_step, length)
        shape, ordinal, occurrence = np.concatenate(self.spans).T[:, place]
        columns = [self.times[name].astype(np.int64) for name in _TIMES.names or ()]
        return CollectiveTable(self.shapes, row, shape, self.first_seqs[row, ordinal] + occurrence, *columns)


def _pack(signatures: IntArray, first_seqs: IntArray, known: dict[int, list[CollectiveShape]], data: bytes) -> _Packed:
    """The collectives of the leading steps whose collectives are all there."""
    times = np.frombuffer(data[: len(data) - len(data) % _TIMES.itemsize], dtype=_TIMES)
    numbers, code = np.unique(signatures, return_inverse=True)
    shapes: list[CollectiveShape] = []
    spans = [_span(known.get(number, []), shapes) for number in numbers.tolist()]
    readable = np.array([number == MISSING or number in known for number in numbers.tolist()], dtype=bool)
    lengths = np.array([len(span) for span in spans], dtype=np.int64)
    groups = np.array([span[:, 1].max(initial=-1) + 1 for span in spans], dtype=np.int64)

    ends = np.cumsum(lengths[code])
    good = readable[code] & (ends <= len(times)) & (groups[code] <= (first_seqs != MISSING).sum(axis=1))
    until = len(good) if good.all() else int(np.argmin(good))
    kept = int(ends[until - 1]) if until else 0
    return _Packed(shapes, spans, code[:until], first_seqs[:until], times[:kept])


def _span(signature: list[CollectiveShape], shapes: list[CollectiveShape]) -> IntArray:
    """For each collective of a signature: its shape's index, its group's ordinal, its number within the group.

    Shapes not yet in `shapes` are appended.
    """
    groups: dict[str, int] = {}
    seen: Counter[str] = Counter()
    rows: list[tuple[int, int, int]] = []
    for shape in signature:
        if shape not in shapes:
            shapes.append(shape)
        rows.append((shapes.index(shape), groups.setdefault(shape.group, len(groups)), seen[shape.group]))
        seen[shape.group] += 1
    return np.array(rows, dtype=np.int64).reshape(-1, 3)
