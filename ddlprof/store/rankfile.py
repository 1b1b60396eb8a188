"""Decodes the two files of one rank: `rank-N.jsonl` and `rank-N.collectives`.

Steps are the bulk and are parsed all at once; if that fails, line by line, and what is damaged is dropped.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddlprof.model import codec
from ddlprof.model.errors import UserError
from ddlprof.model.records import MISSING, SCHEMA_VERSION, CollectiveShape, CollectiveTimes, RankHeader
from ddlprof.store.tables import (
    CLASS_FIELDS,
    STEP_FIELDS,
    CollectiveTable,
    IntArray,
    Note,
    RankData,
    StepTable,
)

LARGEST = 2**62
"""No time of ours is as large; two of them can be added as 64-bit integers."""

_STEP_PREFIX = '["s",'
_TIMES = np.dtype([(f.name, "<u4") for f in fields(CollectiveTimes)])
_DAMAGE = (ValueError, TypeError, OverflowError)
_CLASS_COLUMNS = [STEP_FIELDS.index(name) for name in CLASS_FIELDS]
_STEP_COLUMN = STEP_FIELDS.index("step_ns")


@dataclass
class _Parsed:
    """The lines of a file by kind. `trusted` counts the step lines before the first damage."""

    step_lines: list[str] = field(default_factory=list)
    records: dict[str, list[Any]] = field(default_factory=dict)
    damaged: int = 0
    trusted: int | None = None

    def damage(self, trusted: int) -> None:
        self.damaged += 1
        self.trusted = trusted if self.trusted is None else min(self.trusted, trusted)


def read_rank(path: Path) -> RankData:
    """Reads one rank. Raises ValueError if not even its header can be read."""
    # A line without its line end is torn: the process was killed while writing it.
    lines = path.read_bytes().decode("utf-8", errors="replace").split("\n")[:-1]
    if not lines:
        raise ValueError("the file has no header")
    header = codec.decode_header(lines[0])
    _check_header(header, path)
    parsed = _sort_lines(lines[1:])
    steps = _steps(parsed)
    get = parsed.records.get
    rank = RankData(header, StepTable(steps[:, : len(STEP_FIELDS)]))
    rank.aggregates = get("a", [])
    rank.context = get("c", [])
    rank.windows = get("w", [])
    rank.calibration = get("b", [])
    rank.looking = get("k", [None])[-1]
    rank.end = get("e", [None])[-1]
    rank.samples = _samples(get("l", []), get("o", []))
    rank.notes = [Note(str(hook), str(message)) for hook, message in (n for n in get("n", []) if len(n) == 2)]
    if parsed.damaged:
        plural = "s" if parsed.damaged > 1 else ""
        rank.notes.append(Note(path.name, f"{parsed.damaged} damaged line{plural} left out"))
    # The binary file has no marks of its own: after a lost line nobody knows which times belong to which step.
    trusted = steps[: parsed.trusted]
    rank.collectives, rank.collectives_until = _collectives(
        rank.steps["signature"][: len(trusted)],
        trusted[:, len(STEP_FIELDS) :],
        dict(get("g", [])),
        path.with_suffix(".collectives"),
    )
    return rank


def _check_header(header: RankHeader, path: Path) -> None:
    numbers = (header.rank, header.world_size, header.attempt, header.origin_ns, header.origin_unix_ns, header.schema)
    if not all(isinstance(n, int) and 0 <= n < LARGEST for n in numbers):
        raise ValueError("the header is damaged")
    if header.schema > SCHEMA_VERSION:
        raise UserError(f"{path}: written by a newer ddlprof (schema {header.schema}): upgrade ddlprof to read it")


def _sort_lines(lines: list[str]) -> _Parsed:
    parsed = _Parsed()
    for line in lines:
        if line.startswith(_STEP_PREFIX):
            parsed.step_lines.append(line)
            continue
        try:
            tag, record = codec.decode(line)
            for part in record[1] if tag == "g" else [record]:
                _check_types(part)
        except ValueError:
            parsed.damage(len(parsed.step_lines))
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


def _steps(parsed: _Parsed) -> IntArray:
    """A row a step: the fields, then the sequence numbers. Damaged lines are left out and noted in `parsed`."""
    try:
        steps = _parse_steps(parsed.step_lines)
    except _DAMAGE:
        steps = _parse_steps([line for line in parsed.step_lines if _parses(line)])
        for index, line in enumerate(parsed.step_lines):
            if not _parses(line):
                parsed.damage(index)
    sound = _sound(steps)
    for bad in np.flatnonzero(~sound).tolist():
        parsed.damage(bad)
    return steps[sound]


def _parse_steps(lines: list[str]) -> IntArray:
    # Step lines hold numbers only, so null can be replaced in the text, which is faster than in the lists.
    rows = json.loads("[" + ",".join(lines).replace("null", str(MISSING)) + "]")
    if len(rows) != len(lines) or any(len(row) <= len(STEP_FIELDS) for row in rows):
        raise ValueError("not one whole step a line")
    width = max(map(len, rows), default=1 + len(STEP_FIELDS))
    padded = [row[1:] + [MISSING] * (width - len(row)) for row in rows]
    return np.array(padded, dtype=np.int64).reshape(-1, width - 1)


def _parses(line: str) -> bool:
    try:
        _parse_steps([line])
    except _DAMAGE:
        return False
    return True


def _sound(steps: IntArray) -> NDArray[np.bool_]:
    """Rows whose numbers can be: nothing below MISSING, and the classes add up to the step."""
    classes = np.maximum(steps[:, _CLASS_COLUMNS], 0).sum(axis=1)
    sound: NDArray[np.bool_] = (steps >= MISSING).all(axis=1) & (classes == steps[:, _STEP_COLUMN])
    return sound


def _samples(places: list[Any], counts: list[dict[Any, Any]]) -> dict[str, int]:
    names = {place[0]: place[1] for place in places if len(place) == 2}
    total: Counter[str] = Counter()
    for line in counts:
        for number, count in line.items():
            total[str(names.get(number, "unknown line"))] += count
    return dict(total.most_common())


def _collectives(
    signatures: IntArray, first_seqs: IntArray, known: dict[int, list[CollectiveShape]], path: Path
) -> tuple[CollectiveTable, int]:
    """Expands the binary file; also the number of leading steps whose collectives are all there."""
    data = path.read_bytes() if path.exists() else b""
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
    code, ends = code[:until], ends[:until]
    row = np.repeat(np.arange(until), lengths[code])
    if not len(row):
        return CollectiveTable.empty(), until
    within = np.arange(len(row)) - np.repeat(ends - lengths[code], lengths[code])
    first_of_span = np.cumsum(lengths) - lengths
    shape, ordinal, occurrence = np.concatenate(spans)[first_of_span[code][row] + within].T
    columns = [times[name][: len(row)].astype(np.int64) for name in _TIMES.names or ()]
    return CollectiveTable(shapes, row, shape, first_seqs[row, ordinal] + occurrence, *columns), until


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
