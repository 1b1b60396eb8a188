"""Text form of the records: one JSON value a line, arrays with a one-letter tag, no names repeated.

`rank-N.jsonl` begins with the header object. A line says:
`["s", ...]` StepRow, `["a", ...]` Aggregate,
`["g", id, [[group, op, bytes, ranks, root], ...]]` signature, without the root where there is none,
`["l", id, text, what]` source line (without `what` where nothing is known of it),
`["q", step, id, n, id, n, ...]` samples in the `other` of a step (older runs: `["o", id, n, ...]`, of no known step),
`["c", ...]` ContextRow, `["n", hook, message]` note, `["k", ...]` LookingCost, `["d", ...]` LoaderCost,
`["w", ...]` WindowRow, `["b", ...]` Calibration, `["t", ...]` ClockReading, `["u", ...]` Loss, `["e", ...]` End.
`rank-N.collectives` holds four little-endian uint32 for every collective of every kept step, in order.
"""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, fields
from typing import Any, TypeAlias

from ddlprof.model.places import Place
from ddlprof.model.records import (
    Aggregate,
    Calibration,
    ClockReading,
    CollectiveShape,
    CollectiveTimes,
    ContextRow,
    End,
    LoaderCost,
    LookingCost,
    Loss,
    RankHeader,
    StepRow,
    WindowRow,
)

_TIMES = struct.Struct("<4I")
COLLECTIVE_BYTES = _TIMES.size
_SHAPE_FIELDS = len(fields(CollectiveShape))
_STEP_FIELDS = len(fields(StepRow)) - 1  # the last one, first_seqs, is spread over the end of the line

_TAGS: dict[type, str] = {
    Aggregate: "a",
    ContextRow: "c",
    LookingCost: "k",
    LoaderCost: "d",
    End: "e",
    WindowRow: "w",
    Calibration: "b",
    ClockReading: "t",
    Loss: "u",
}
Record: TypeAlias = (
    Aggregate | ContextRow | LookingCost | LoaderCost | End | WindowRow | Calibration | ClockReading | Loss
)
"""A line by itself, of plain numbers or text."""
_TYPES: dict[str, Any] = {tag: kind for kind, tag in _TAGS.items()}
_NAMES = {kind: tuple(f.name for f in fields(kind)) for kind in (StepRow, *_TAGS)}


def _line(value: Any) -> str:
    return json.dumps(value, separators=(",", ":")) + "\n"


def encode_header(header: RankHeader) -> str:
    """The first line of a rank's file."""
    return _line(asdict(header))


def encode_step(row: StepRow) -> str:
    """A step; at most 200 bytes for up to two process groups."""
    values = [getattr(row, name) for name in _NAMES[StepRow][:-1]]
    return _line(["s", *values, *row.first_seqs])


def encode(record: Record) -> str:
    """Any record whose fields are plain numbers or text."""
    kind = type(record)
    return _line([_TAGS[kind], *(getattr(record, name) for name in _NAMES[kind])])


def encode_signature(number: int, shapes: list[CollectiveShape]) -> str:
    """The shapes of a step's collectives, written once and referred to by number."""
    rows = [[s.group, s.op, s.bytes, s.ranks, *([] if s.root is None else [s.root])] for s in shapes]
    return _line(["g", number, rows])


def encode_place(number: int, place: Place) -> str:
    """A source line, written once and referred to by number."""
    return _line(["l", number, *(word for word in place if word)])


def encode_samples(step: int, counts: dict[int, int]) -> str:
    """Stack samples taken in the `other` of a step, by number of the source line."""
    return _line(["q", step, *(x for pair in counts.items() for x in pair)])


def encode_note(hook: str, message: str) -> str:
    """Something that was not measured, and why."""
    return _line(["n", hook, message])


def encode_times(times: list[CollectiveTimes]) -> bytes:
    """16 bytes a collective."""
    return b"".join(_TIMES.pack(t.ready_us, t.end_us, t.need_us, t.exposed_us) for t in times)


def decode_times(data: bytes) -> list[CollectiveTimes]:
    """The inverse of `encode_times`; a torn last record is dropped."""
    whole = len(data) - len(data) % COLLECTIVE_BYTES
    return [CollectiveTimes(*values) for values in _TIMES.iter_unpack(data[:whole])]


def decode_header(line: str) -> RankHeader:
    """Raises ValueError if the line is no header; unknown fields of newer versions are ignored."""
    value = json.loads(line)
    known = {f.name for f in fields(RankHeader)}
    try:
        return RankHeader(**{k: v for k, v in value.items() if k in known})
    except (AttributeError, TypeError) as error:
        raise ValueError(f"not a rank header: {error}") from None


def decode(line: str) -> tuple[str, Any]:
    """`(tag, record)`; the record is the rest of the array for tags without a record type.

    Raises ValueError for a damaged line.
    """
    value = json.loads(line)
    if not isinstance(value, list) or not value or not isinstance(value[0], str):
        raise ValueError("not a record")
    tag, rest = value[0], value[1:]
    try:
        if tag == "s":
            if len(rest) < _STEP_FIELDS:
                raise ValueError("short step record")
            return tag, StepRow(*[*rest[:_STEP_FIELDS], tuple(rest[_STEP_FIELDS:])])
        if tag == "g":
            return tag, (rest[0], [CollectiveShape(*shape[:_SHAPE_FIELDS]) for shape in rest[1]])
        if tag in ("o", "q") and not all(isinstance(number, int) for number in rest):
            raise ValueError("damaged samples")
        if tag == "o":
            return tag, (None, dict(zip(rest[::2], rest[1::2], strict=True)))
        if tag == "q":
            return tag, (rest[0], dict(zip(rest[1::2], rest[2::2], strict=True)))
        if tag in _TYPES:
            return tag, _TYPES[tag](*rest)
    except (TypeError, IndexError) as error:
        raise ValueError(f"damaged record: {error}") from None
    return tag, rest
