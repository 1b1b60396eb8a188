"""Takes the lines of a rank's text file apart: `rank-N.jsonl`.

Values are found by the names of columns in the header. Kinds of lines that may occur thousands of times are parsed all
at once. If that fails they are parsed one by one, and damaged lines are dropped. Every value is checked here and
nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import compress, islice
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ddlprof.base.errors import UserError
from ddlprof.base.reading import NOT_NEGATIVE, Interval, decode, parse_json
from ddlprof.model import codec
from ddlprof.model.blocks import Layout, layouts_of
from ddlprof.model.codec import COLUMNS, KINDS, Columns, columns_of
from ddlprof.model.issuers import OF_SCRIPT, Issuers
from ddlprof.model.records import (
    RANK_SCHEMA_VERSION,
    ClockReading,
    CollectiveShape,
    ContextRow,
    End,
    LossValue,
    Overhead,
    RankHeader,
    Samples,
)
from ddlprof.model.source_locations import SourceLine, SourceLocation
from ddlprof.store.flushes import Undamaged
from ddlprof.store.numbers import DAMAGE, LARGEST, numbers, whole_numbers
from ddlprof.store.tables import OPTIONAL_FIELDS, ContextTable

MAX_LINE_CHARACTERS = 4 << 20
"""The most characters of a line: a signature with 80,000 collectives."""
_USUAL_SAMPLES_CHARACTERS = 10_000
"""Longer lines of samples are parsed one by one, where impossible ones are refused."""
MAX_GROUPS = 4096
"""The most process groups of one rank, channels of messages included."""
_VARIED_SIZES = 3
"""From so many sizes on, the sizes of what a line sends vary."""
MAX_DAMAGED_LINES = 100_000
"""After this number of damaged lines the rest of a file counts as damaged, too."""

_Table = TypeVar("_Table")

_ANY_SIGN = Interval(-LARGEST)
_SIGNED = (End, ClockReading, LossValue)
"""Records whose fields may be negative: exit codes, differences of clocks, losses. All other numbers are not."""
_BULK = ("c", "k", "q")
"""Tags of lines that contain only numbers and occur thousands of times. They are parsed all at once."""


@dataclass
class Parsed:
    """The lines of a file by kind."""

    columns: Columns
    bulk: dict[str, list[str]] = field(default_factory=lambda: {tag: [] for tag in _BULK})
    records: dict[str, list[Any]] = field(default_factory=dict)
    damaged: int = 0
    """The number of damaged lines."""

    def of(self, tag: str) -> list[Any]:
        """The records of a tag that is not in `bulk`."""
        return self.records.get(tag, [])


@dataclass(frozen=True)
class Head:
    """The first line of a rank's text file."""

    header: RankHeader
    columns: Columns
    """The columns of lines, by tag."""
    layouts: dict[str, Layout]
    """The columns of blocks, by kind."""


def read_header(text: bytes, name: str) -> Head:
    """The first line of a text. Raises ValueError if it is no header, UserError if it is of another version."""
    if b"\n" not in text:
        raise ValueError("the file has no header")
    line = text[: text.index(b"\n")].decode(errors="replace")
    if len(line) > MAX_LINE_CHARACTERS:
        raise ValueError("the header is too long")
    values = codec.header_fields(line, parse_json)
    header = decode(RankHeader, values, numbers_are=NOT_NEGATIVE)
    if header.schema > RANK_SCHEMA_VERSION:
        raise UserError(f"{name}: written by a newer ddlprof (schema {header.schema}): upgrade ddlprof to read it")
    if header.schema < RANK_SCHEMA_VERSION:
        raise UserError(f"{name}: written by an older ddlprof (schema {header.schema}): run the script again")
    if not header.world_size:
        raise ValueError("the header is of a job without ranks")
    return Head(header, columns_of(values), layouts_of(values))


def sort_lines(undamaged: Undamaged, columns: Columns) -> Parsed:
    """The lines by kind. What cannot be read is counted as damaged."""
    parsed = Parsed(columns)
    tags = {f'["{tag}",': tag for tag in _BULK if tag != "q" or columns.get(tag) == COLUMNS[tag]}
    lines = undamaged.lines
    for number, line in enumerate(lines, 1):
        tag = tags.get(line[:5])
        if tag is not None and len(line) <= (MAX_LINE_CHARACTERS if tag != "q" else _USUAL_SAMPLES_CHARACTERS):
            parsed.bulk[tag].append(line)
            continue
        try:
            tag, record = read_record(line, columns)
        except DAMAGE:
            parsed.damaged += 1
            if parsed.damaged >= MAX_DAMAGED_LINES:
                parsed.damaged += len(lines) - number
                break
        else:
            if record is not None:
                parsed.records.setdefault(tag, []).append(record)
    return parsed


def read_record(line: str, columns: Columns) -> tuple[str, Any]:
    """The tag of a line and its record; None as record for an unknown tag.

    Raises ValueError unless every field has its declared type and is small enough to be added up.
    """
    if len(line) > MAX_LINE_CHARACTERS:
        raise ValueError("too long")
    tag, values = codec.named(line, columns, parse_json)
    kind = KINDS.get(tag)
    if kind is None or tag not in columns:
        return tag, None  # written by a newer version
    return tag, decode(kind, values, numbers_are=_ANY_SIGN if kind in _SIGNED else NOT_NEGATIVE)


def bulk(parsed: Parsed, tag: str, parse: Callable[[list[str]], _Table]) -> _Table:
    """Parses the lines of a kind with `parse`. Damaged lines are noted in `parsed` and removed from it."""
    lines = parsed.bulk[tag]
    try:
        return parse(lines)
    except DAMAGE:
        good = [_parses(line, parse) for line in lines]
    parsed.damaged += good.count(False)
    parsed.bulk[tag] = list(compress(lines, good))
    return parse(parsed.bulk[tag])


def _parses(line: str, parse: Callable[[list[str]], object]) -> bool:
    try:
        parse([line])
    except DAMAGE:
        return False
    return True


def context_of(parsed: Parsed) -> ContextTable:
    """The counters, a row for each line."""
    return ContextTable(_floats(parsed, "c", ContextRow))


def overhead_of(parsed: Parsed) -> Overhead | None:
    """The overhead at the end."""
    lines = parsed.bulk["k"]
    while lines:  # each contains the earlier ones, so the last one that can be read is enough
        parsed.bulk["k"] = [lines.pop()]
        rows = _floats(parsed, "k", Overhead)
        if len(rows):
            return Overhead(*map(int, rows[-1]))
    return None


def _floats(parsed: Parsed, tag: str, kind: type[Any]) -> NDArray[np.float64]:
    """A column for each field of `kind`; NaN where it is not known."""
    names = parsed.columns.get(tag, ())
    table = bulk(parsed, tag, partial(numbers, width=len(names)))
    nothing = np.full(len(table), np.nan)
    rows = np.column_stack([table[:, names.index(f.name)] if f.name in names else nothing for f in fields(kind)])
    known = [f.name not in OPTIONAL_FIELDS for f in fields(kind)]
    sound = (np.isnan(rows) | ((rows >= 0) & (rows < LARGEST))).all(axis=1) & ~np.isnan(rows[:, known]).any(axis=1)
    parsed.damaged += int(np.count_nonzero(~sound))
    return np.asarray(rows[sound])


def shapes_of(parsed: Parsed) -> dict[int, tuple[CollectiveShape, ...]]:
    """The signatures by number."""
    shapes: dict[int, tuple[CollectiveShape, ...]] = {}
    groups: set[str] = set()
    for signature in parsed.of("g"):
        groups.update(shape.group for shape in signature.shapes)
        if len(groups) > MAX_GROUPS:
            parsed.damaged += 1
            break
        shapes[signature.number] = signature.shapes
    return _with_issuers(shapes, parsed)


def _with_issuers(
    signatures: dict[int, tuple[CollectiveShape, ...]], parsed: Parsed
) -> dict[int, tuple[CollectiveShape, ...]]:
    """The signatures with the issuers of their collectives. In a signature of which none are known, a shape has the
    issuer that it has in all others, and a gather not seen before that of its operation, if this is a line of the
    script that alone issues it and whose sizes vary, as where a growing list is gathered."""
    issuers: dict[int, Issuers] = {line.signature: line for line in parsed.of("j")}
    issued: dict[CollectiveShape, set[int]] = {}
    for number, known in issuers.items():
        shapes = signatures.get(number, ())
        of = list(islice(known.lines(), len(shapes) + 1))
        if len(of) != len(shapes):
            continue
        for shape, issuer in zip(shapes, of, strict=True):
            issued.setdefault(shape, set()).add(issuer)
        signatures[number] = tuple(replace(s, issuer=issuer) for s, issuer in zip(shapes, of, strict=True))
    sure = {shape: replace(shape, issuer=min(of)) for shape, of in issued.items() if len(of) == 1}
    varying = _varying(issued, {line.number for line in parsed.of("l") if line.what in OF_SCRIPT})

    def told(shape: CollectiveShape) -> CollectiveShape:
        if shape in issued:
            return sure.get(shape, shape)
        return replace(shape, issuer=varying.get((shape.group, shape.op), shape.issuer))

    if sure:
        for number, shapes in signatures.items():
            if number not in issuers:
                signatures[number] = tuple(map(told, shapes))
    return signatures


def _varying(issued: dict[CollectiveShape, set[int]], of_script: set[int]) -> dict[tuple[str, str], int]:
    """The line of the script by group and gather that alone issues this operation there, in several sizes. What is
    reduced is of many sizes, too, as gradients are, but where another line reduces now and then, it is often a new one.
    """
    issuers: dict[tuple[str, str], set[int]] = {}
    sizes: dict[tuple[str, str], set[int]] = {}
    for shape, of in issued.items():
        if not shape.op.startswith(("allgather", "gather")):
            continue
        key = shape.group, shape.op
        issuers.setdefault(key, set()).update(of)
        sizes.setdefault(key, set()).add(shape.bytes)
    alone = {key: min(of) for key, of in issuers.items() if len(of) == 1 and len(sizes[key]) >= _VARIED_SIZES}
    return {key: number for key, number in alone.items() if number in of_script}


def places_of(parsed: Parsed) -> dict[int, SourceLocation]:
    """The places in the sources by number."""
    lines: list[SourceLine] = parsed.of("l")
    return {line.number: SourceLocation(line.text, line.what, line.caller) for line in lines}


def samples_of(parsed: Parsed) -> list[tuple[int, SourceLocation, int]]:
    """The stack samples of `other`: step, place and number of each."""
    long_lines: list[Samples] = parsed.of("q")
    sampled = [(samples.step, list(samples.counts)) for samples in long_lines]
    return _placed(parsed, sampled + bulk(parsed, "q", _sample_lines))


def compute_samples_of(parsed: Parsed) -> list[tuple[int, SourceLocation, int]]:
    """The stack samples of computing: step, place and number of each."""
    return _placed(parsed, [(samples.step, list(samples.counts)) for samples in parsed.of("J")])


def _placed(parsed: Parsed, sampled: list[tuple[int, list[int]]]) -> list[tuple[int, SourceLocation, int]]:
    known, unknown = places_of(parsed), SourceLocation("unknown line")
    return [
        (step, known.get(number, unknown), count)
        for step, of_step in sampled
        for number, count in zip(of_step[::2], of_step[1::2], strict=True)
    ]


def _sample_lines(lines: list[str]) -> list[tuple[int, list[int]]]:
    """For each line its step, and the pairs of place and count behind it."""
    rows = whole_numbers(lines)
    if any(len(row) % 2 == 0 or min(row) < 0 or max(row) >= LARGEST for row in rows):
        raise ValueError("a source line without the number of its samples")
    return [(step, counts) for step, *counts in rows]
