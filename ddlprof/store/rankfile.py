"""Decodes the two files of one rank: `rank-N.jsonl` and `rank-N.collectives`.

Values are found by the names of columns in the header. Kinds of lines that may occur thousands of times are parsed all
at once. If that fails they are parsed one by one, and damaged lines are dropped. Every value is checked here and
nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING as NO_DEFAULT
from dataclasses import dataclass, field, fields
from functools import partial
from itertools import compress
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ddlprof.base.errors import UserError
from ddlprof.base.reading import NOT_NEGATIVE, Range, decode, parse_json
from ddlprof.model import codec
from ddlprof.model.codec import COLLECTIVES, COLUMNS, KINDS, REST, Columns, columns_of
from ddlprof.model.dimensions import is_known
from ddlprof.model.health import COUNTERS
from ddlprof.model.records import (
    MISSING,
    RANK_SCHEMA_VERSION,
    SPANS,
    Aggregate,
    ClockReading,
    CollectiveShape,
    ContextRow,
    End,
    LossValue,
    Note,
    Overhead,
    RankHeader,
    Samples,
    SourceLine,
    StepRow,
)
from ddlprof.model.source_places import SourcePlace
from ddlprof.store.collectives import StepCollectives, pack, times_of
from ddlprof.store.flushes import Undamaged, undamaged_parts
from ddlprof.store.numbers import DAMAGE, LARGEST, Lines, numbers, whole_numbers, whole_numbers_at_once
from ddlprof.store.parts import times_name
from ddlprof.store.tables import (
    CLASS_FIELDS,
    OPTIONAL_FIELDS,
    STEP_FIELDS,
    ContextTable,
    IntArray,
    RankData,
    StepTable,
)

MAX_LINE_CHARACTERS = 4 << 20
"""The most characters of a line: a signature with 80,000 collectives."""
_USUAL_SAMPLES_CHARACTERS = 10_000
"""Longer lines of samples are parsed one by one, where impossible ones are refused."""

LARGEST_OF_STEP = 2**50
"""The most that a step may take or count; as nanoseconds, 13 days."""
LARGEST_SUM = 2**56
"""The largest sum of one rank's numbers; as nanoseconds, two years."""
MAX_GROUPS = 4096
"""The most process groups of one rank, channels of messages included."""
MAX_DAMAGED_LINES = 100_000
"""After this number of damaged lines the rest of a file counts as damaged, too."""

_Number = TypeVar("_Number", np.int64, np.float64)
_Table = TypeVar("_Table")

_ANY_SIGN = Range(-LARGEST)
_SIGNED = (End, ClockReading, LossValue)
"""Records whose fields may be negative: exit codes, differences of clocks, losses. All other numbers are not."""
_CLASS_COLUMNS = [STEP_FIELDS.index(name) for name in CLASS_FIELDS]
_SUMMED_COLUMNS = [STEP_FIELDS.index(f.name) for f in fields(Aggregate) if f.name in STEP_FIELDS]
_STEP_COLUMN = STEP_FIELDS.index("step_ns")
_BEGIN, _END = len(STEP_FIELDS), len(STEP_FIELDS) + 1
"""Two columns after those of a step: begin and end of its sequence numbers among those of all steps."""
_STEP = b'["s",'
_BULK = ("s", "c", "k", "q")
"""Tags of lines that contain only numbers and occur thousands of times. They are parsed all at once."""


@dataclass
class _Parsed:
    """The lines of a file by kind. `trusted`: the number of step lines before the first damage."""

    columns: Columns
    step_text: bytes = b""
    """The lines of steps, each with its end."""
    step_count: int = 0
    bulk: dict[str, list[str]] = field(default_factory=lambda: {tag: [] for tag in _BULK})
    steps_before: dict[str, list[int]] = field(default_factory=lambda: {tag: [] for tag in _BULK})
    """The number of step lines before each line of `bulk`."""
    records: dict[str, list[Any]] = field(default_factory=dict)
    damaged: int = 0
    trusted: int | None = None

    def distrust(self, steps: int) -> None:
        self.trusted = steps if self.trusted is None else min(self.trusted, steps)

    def damage(self, steps: int) -> None:
        self.damaged += 1
        self.distrust(steps)

    def damage_bulk(self, tag: str, index: int) -> None:
        self.damage(self.steps_before[tag][index])

    def of(self, tag: str) -> list[Any]:
        return self.records.get(tag, [])

    def take_steps_apart(self) -> None:
        self.bulk["s"] = self.step_text.decode(errors="replace").split("\n")[:-1]


def decode_rank(text: bytes, times: bytes, name: str) -> RankData:
    """Decodes the files of one rank. `name`: for messages. Raises ValueError if not even the header can be read."""
    if b"\n" not in text:
        raise ValueError("the file has no header")
    header, columns = read_header(text[: text.index(b"\n")].decode(errors="replace"), name)
    undamaged = undamaged_parts(text, times, columns)
    parsed = _sort_lines(undamaged, columns)
    steps, seqs = _steps(parsed)
    rank = RankData(header, StepTable(steps[:, : len(STEP_FIELDS)]))
    rank.aggregates = _aggregates(parsed)
    rank.context = _context(parsed)
    rank.windows = parsed.of("w")
    rank.calibration = parsed.of("b")
    rank.clock_readings = parsed.of("t")
    rank.overhead = _overhead(parsed)
    rank.loader_costs = parsed.of("d")
    rank.drops = list({(drop.source, drop.many): drop for drop in parsed.of("u")}.values())  # they are cumulative
    rank.training_loss = parsed.of("v")
    rank.spans = [span for span in parsed.of("p") if span.what in SPANS]
    rank.pipelines, rank.routed = parsed.of("h"), parsed.of("x")
    rank.checkpoint_files = parsed.of("r")
    rank.health = [reading for reading in parsed.of("y") if reading.counter in COUNTERS]
    rank.groups = {facts.group: facts for facts in parsed.of("m")[-MAX_GROUPS:] if is_known(facts)}
    rank.end = next(reversed(parsed.of("e")), None)
    rank.samples = _samples(parsed)
    # The binary file does not mark steps: after a lost line its times cannot be assigned to steps.
    trusted = steps[: parsed.trusted]
    of_steps = StepCollectives(rank.steps["signature"][: len(trusted)], trusted[:, _BEGIN], trusted[:, _END], seqs)
    packed = pack(of_steps, _shapes(parsed), times_of(undamaged.times, columns.get(COLLECTIVES, ())))
    rank.expand, rank.collectives_until = packed.expand, len(packed.code)
    rank.notes = [*parsed.of("n"), *_notes_of_damage(parsed, undamaged, rank, name)]
    return rank


def _notes_of_damage(parsed: _Parsed, undamaged: Undamaged, rank: RankData, name: str) -> list[Note]:
    notes = []
    if parsed.damaged:
        notes.append(Note(name, f"{_count(parsed.damaged, 'damaged line')} left out"))
    if undamaged.lost_parts:
        parts = _count(undamaged.lost_parts, "damaged part")
        notes.append(Note(name, f"{parts} left out, {_count(undamaged.lost_lines, 'line')} in all"))
    if undamaged.times_problem:
        message = f"{undamaged.times_problem}: what ranks told each other is known only in part"
        if rank.collectives_until < len(rank.steps):
            first = rank.steps["step"][rank.collectives_until]
            message = f"{undamaged.times_problem}: the communication of step {first} and later ones is not told apart"
        notes.append(Note(times_name(name), message))
    return notes


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def read_header(line: str, name: str) -> tuple[RankHeader, Columns]:
    """The header of a file and its columns. Raises ValueError if the line is no header, UserError if it is too new."""
    if len(line) > MAX_LINE_CHARACTERS:
        raise ValueError("the header is too long")
    values = codec.header_fields(line, parse_json)
    header = decode(RankHeader, values, numbers_are=NOT_NEGATIVE)
    if header.schema > RANK_SCHEMA_VERSION:
        raise UserError(f"{name}: written by a newer ddlprof (schema {header.schema}): upgrade ddlprof to read it")
    if not header.world_size:
        raise ValueError("the header is of a job without ranks")
    return header, columns_of(values)


def _sort_lines(undamaged: Undamaged, columns: Columns) -> _Parsed:
    parsed = _Parsed(columns)
    prefixes = {f'["{tag}",': tag for tag in _BULK if tag != "q" or columns.get(tag) == COLUMNS[tag]}
    lines = Lines(undamaged.text, _STEP, MAX_LINE_CHARACTERS)
    until = len(lines)
    for index in np.flatnonzero(~lines.has_prefix).tolist():
        line, steps = lines.text_of(index), int(lines.before[index])
        tag = prefixes.get(line[:5])
        if tag not in (None, "s") and len(line) <= (MAX_LINE_CHARACTERS if tag != "q" else _USUAL_SAMPLES_CHARACTERS):
            parsed.steps_before[tag].append(steps)
            parsed.bulk[tag].append(line)
            continue
        try:
            tag, record = read_record(line, columns)
        except DAMAGE:
            parsed.damage(steps)
            if parsed.damaged >= MAX_DAMAGED_LINES:
                until = index + 1
                parsed.damaged += len(lines) - until
                break
        else:
            if record is not None:
                parsed.records.setdefault(tag, []).append(record)
    if undamaged.first_lost is not None and undamaged.first_lost <= until:
        parsed.distrust(int(lines.before[undamaged.first_lost]))
    parsed.step_text, parsed.step_count = lines.joined(until), int(lines.before[until])
    parsed.steps_before["s"] = list(range(parsed.step_count))
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


def _bulk(parsed: _Parsed, tag: str, parse: Callable[[list[str]], _Table]) -> _Table:
    """Parses the lines of a kind with `parse`. Damaged lines are noted in `parsed` and removed from it."""
    lines = parsed.bulk[tag]
    try:
        return parse(lines)
    except DAMAGE:
        good = [_parses(line, parse) for line in lines]
    for index in np.flatnonzero(~np.array(good)).tolist():
        parsed.damage_bulk(tag, index)
    parsed.bulk[tag] = list(compress(lines, good))
    parsed.steps_before[tag] = list(compress(parsed.steps_before[tag], good))
    return parse(parsed.bulk[tag])


def _parses(line: str, parse: Callable[[list[str]], object]) -> bool:
    try:
        parse([line])
    except DAMAGE:
        return False
    return True


def _sound(parsed: _Parsed, tag: str, rows: NDArray[_Number], sound: NDArray[np.bool_]) -> NDArray[_Number]:
    if sound.all():
        return rows
    for bad in np.flatnonzero(~sound).tolist():
        parsed.damage_bulk(tag, bad)
    return rows[sound]


def _steps(parsed: _Parsed) -> tuple[IntArray, IntArray]:
    """A row for each step: its fields, and where its sequence numbers are in the second array."""
    names = parsed.columns.get("s", ())
    more = bool(names) and names[-1].endswith(REST)
    single = names[:-1] if more else names
    optional = OPTIONAL_FIELDS | (set(names) - set(STEP_FIELDS))
    try:
        table, seqs = whole_numbers_at_once(parsed.step_text, _STEP, single, optional, more)
    except DAMAGE:
        parsed.take_steps_apart()
        table, seqs = _bulk(parsed, "s", partial(whole_numbers, names=single, optional=optional, more=more))
        parsed.step_count = len(table)
    columns = [_column(table, single, name) for name in STEP_FIELDS]
    steps = np.stack([*columns, table[:, -2], table[:, -1]]).T  # contiguous columns, as they are used so
    # A plausible step has no number below MISSING, and its classes add up to its time.
    classes = np.maximum(steps[:, _CLASS_COLUMNS], 0).sum(axis=1)
    least = np.array([MISSING if name in OPTIONAL_FIELDS | {"signature"} else 0 for name in STEP_FIELDS])
    values = steps[:, : len(STEP_FIELDS)]
    known = ((values >= least) & (values < LARGEST)).all(axis=1)
    small = (steps[:, _SUMMED_COLUMNS] < LARGEST_OF_STEP).all(axis=1)
    steps = _sound(parsed, "s", steps, known & small & (classes == steps[:, _STEP_COLUMN]))
    return steps[: _addable(steps[:, _SUMMED_COLUMNS], parsed)], seqs


def _addable(values: IntArray, parsed: _Parsed) -> int:
    """The number of leading rows that can be added up. Later rows count as damaged, as does what belongs to them."""
    sums = np.cumsum(np.maximum(values, 0), axis=0, dtype=np.float64)
    count = int((sums < LARGEST_SUM).all(axis=1).sum())
    for _ in range(len(values) - count):
        parsed.damage(count)
    return count


def _column(table: IntArray, names: tuple[str, ...], name: str) -> IntArray:
    if name in names:
        return table[:, names.index(name)]
    default = next(f.default for f in fields(StepRow) if f.name == name)
    if default is NO_DEFAULT and name not in OPTIONAL_FIELDS:
        raise ValueError(f"the header names no column {name}")
    value = default if isinstance(default, int) else MISSING
    return np.full(len(table), value, dtype=np.int64)


def _context(parsed: _Parsed) -> ContextTable:
    return ContextTable(_floats(parsed, "c", ContextRow))


def _overhead(parsed: _Parsed) -> Overhead | None:
    rows = _floats(parsed, "k", Overhead)
    return Overhead(*map(int, rows[-1])) if len(rows) else None  # each contains the earlier ones


def _floats(parsed: _Parsed, tag: str, kind: type[Any]) -> NDArray[np.float64]:
    """A column for each field of `kind`; NaN where it is not known."""
    names = parsed.columns.get(tag, ())
    table = _bulk(parsed, tag, partial(numbers, width=len(names)))
    nothing = np.full(len(table), np.nan)
    rows = np.column_stack([table[:, names.index(f.name)] if f.name in names else nothing for f in fields(kind)])
    known = [f.name not in OPTIONAL_FIELDS for f in fields(kind)]
    sound = (np.isnan(rows) | ((rows >= 0) & (rows < LARGEST))).all(axis=1) & ~np.isnan(rows[:, known]).any(axis=1)
    return _sound(parsed, tag, rows, sound)


def _aggregates(parsed: _Parsed) -> list[Aggregate]:
    """The aggregates that can be added up."""
    kept: list[Aggregate] = []
    sums = {f.name: 0 for f in fields(Aggregate)}
    for aggregate in parsed.of("a"):
        sums = {name: total + (getattr(aggregate, name) or 0) for name, total in sums.items()}
        if any(total >= LARGEST_SUM for name, total in sums.items() if name != "first_step"):
            parsed.damage(parsed.step_count)
        else:
            kept.append(aggregate)
    return kept


def _shapes(parsed: _Parsed) -> dict[int, tuple[CollectiveShape, ...]]:
    """The signatures by number."""
    shapes: dict[int, tuple[CollectiveShape, ...]] = {}
    groups: set[str] = set()
    for signature in parsed.of("g"):
        groups.update(shape.group for shape in signature.shapes)
        if len(groups) > MAX_GROUPS:
            parsed.damage(parsed.step_count)
            break
        shapes[signature.number] = signature.shapes
    return shapes


def _samples(parsed: _Parsed) -> list[tuple[int, SourcePlace, int]]:
    lines: list[SourceLine] = parsed.of("l")
    known = {line.number: SourcePlace(line.text, line.what) for line in lines}
    unknown = SourcePlace("unknown line")
    long_lines: list[Samples] = parsed.of("q")
    steps, counts = _bulk(parsed, "q", _sample_lines)
    pairs = counts.tolist()
    sampled = [(samples.step, list(samples.counts)) for samples in long_lines]
    sampled += [(step, pairs[begin:end]) for step, begin, end in steps.tolist()]
    return [
        (step, known.get(number, unknown), count)
        for step, of_step in sampled
        for number, count in zip(of_step[::2], of_step[1::2], strict=True)
    ]


def _sample_lines(lines: list[str]) -> tuple[IntArray, IntArray]:
    """For each line its step, and where its pairs of place and count are in the second array."""
    steps, counts = whole_numbers(lines, ("step",), frozenset(), more=True)
    if (counts < 0).any() or (counts >= LARGEST).any() or ((steps[:, 2] - steps[:, 1]) % 2).any():
        raise ValueError("a source line without the number of its samples")
    return steps, counts
