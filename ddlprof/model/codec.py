"""The text form of records: each line is a JSON array of a one-letter tag and the values of the tag's columns.

`rank-N.jsonl` begins with the header, a JSON object that names the columns of each tag and those of the blocks in
`rank-N.steps` (`ddlprof.model.blocks`). Readers use only these names: a value without a column was not measured, and
unknown columns are ignored.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, fields
from typing import Any, TypeAlias

from ddlprof.model.amounts import BatchAmount
from ddlprof.model.blocks import LAYOUTS
from ddlprof.model.checkpoint_files import CheckpointFile
from ddlprof.model.experts import RoutedTokens
from ddlprof.model.health import HealthReading
from ddlprof.model.issuers import Issuers
from ddlprof.model.pipeline import PipelineSchedule
from ddlprof.model.records import (
    Calibration,
    ClockReading,
    CollectiveShape,
    CollectorPauses,
    ComputeSamples,
    ContextRow,
    Drop,
    End,
    FirstBatches,
    Flush,
    GraphBreak,
    GroupFacts,
    JobSpan,
    LoaderCost,
    LossValue,
    Note,
    Overhead,
    Phase,
    RankHeader,
    RecompileReason,
    Samples,
    Signature,
    Stride,
    WindowRow,
)
from ddlprof.model.source_locations import SourceLine, SourceLocation

Columns: TypeAlias = dict[str, tuple[str, ...]]
"""The names of columns by tag. `SHAPES` is a key, too."""

KINDS: dict[str, type[Any]] = {
    "g": Signature, "l": SourceLine, "q": Samples, "c": ContextRow, "n": Note,
    "k": Overhead, "d": LoaderCost, "w": WindowRow, "b": Calibration, "t": ClockReading, "e": End, "f": Flush,
    "u": Drop, "p": JobSpan, "v": LossValue, "m": GroupFacts, "h": PipelineSchedule, "x": RoutedTokens,
    "r": CheckpointFile, "y": HealthReading, "i": Stride, "j": Issuers, "o": BatchAmount,
    "J": ComputeSamples, "O": CollectorPauses, "A": RecompileReason, "P": Phase,
    "B": GraphBreak, "F": FirstBatches,
}  # fmt: skip
"""The type of record of each tag."""
SHAPES = "shapes"
"""The columns of the shapes in a signature."""
REST = "..."
"""The end of the name of a column that takes all remaining values of its line."""

_MOST_KINDS, _MOST_COLUMNS = 100, 1000


def _names(kind: type[Any]) -> tuple[str, ...]:
    return tuple(f.name + (REST if "tuple[int, ...]" in f.type else "") for f in fields(kind))


COLUMNS: Columns = {**{tag: _names(kind) for tag, kind in KINDS.items()}, SHAPES: _names(CollectiveShape)}
"""The columns of all that this version reads."""


def columns_of(header: dict[str, Any]) -> Columns:
    """The columns that a header names. Raises ValueError if they are damaged."""
    if "columns" not in header:
        raise ValueError("the header names no columns")
    named = header["columns"]
    if not isinstance(named, dict) or len(named) > _MOST_KINDS:
        raise ValueError("the header's columns are damaged")
    return {tag: _checked(names) for tag, names in named.items()}


def _checked(names: Any) -> tuple[str, ...]:
    if (
        not isinstance(names, list)
        or len(names) > _MOST_COLUMNS
        or not all(isinstance(name, str) for name in names)
        or len(set(names)) < len(names)
        or any(name.endswith(REST) for name in names[:-1])
    ):
        raise ValueError("the header's columns are damaged")
    return tuple(names)


Record: TypeAlias = (
    ContextRow
    | Overhead
    | LoaderCost
    | End
    | WindowRow
    | Calibration
    | ClockReading
    | Flush
    | Drop
    | LossValue
    | JobSpan
    | Phase
    | PipelineSchedule
    | RoutedTokens
    | CheckpointFile
    | GroupFacts
    | HealthReading
    | Stride
    | CollectorPauses
    | RecompileReason
    | GraphBreak
    | FirstBatches
    | BatchAmount
)
"""Records that consist of plain numbers or text and take one line each."""

TAGS = {kind: tag for tag, kind in KINDS.items()}
_FIELDS = {kind: tuple(f.name for f in fields(kind)) for kind in KINDS.values()}
# Not escaped: a name of a file that is no text ends up as a question mark, not as half a character.
_text = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


def _line(value: Any) -> str:
    return _text(value) + "\n"


def as_bytes(lines: str) -> bytes:
    """The lines as they are on disk: encoded, with invalid characters replaced."""
    return lines.encode(errors="replace")


def encode_header(header: RankHeader) -> str:
    """The first line of a rank's file."""
    return _line({**asdict(header), "columns": COLUMNS, "blocks": LAYOUTS})


def encode(record: Record | Note | SourceLine) -> str:
    """The line of a record whose fields are plain numbers or text."""
    kind = type(record)
    return _line([TAGS[kind], *(getattr(record, name) for name in _FIELDS[kind])])


def encode_signature(number: int, shapes: list[CollectiveShape]) -> str:
    """The line with the shapes of a step's collectives. The root is omitted if there is none."""
    rows = [[s.group, s.op, s.bytes, s.ranks, *([] if s.root is None else [s.root])] for s in shapes]
    return _line([TAGS[Signature], number, rows])


def encode_issuers(issuers: Issuers) -> str:
    """The line that says who issues the collectives of a signature."""
    return _line([TAGS[Issuers], issuers.signature, *issuers.counts])


def encode_location(number: int, place: SourceLocation) -> str:
    """The line of a place in the sources."""
    return encode(SourceLine(number, place.text, place.what, place.caller))


def encode_samples(step: int, counts: dict[int, int], kind: type[Any] = Samples) -> str:
    """The line of stack samples of a step, with counts by the number of the place."""
    return _line([TAGS[kind], step, *(x for pair in counts.items() for x in pair)])


def encode_note(source: str, message: str) -> str:
    """The line about something that was not measured, and why."""
    return encode(Note(source, message))


def _loads(line: str) -> Any:
    try:
        return json.loads(line)
    except RecursionError:
        raise ValueError("lists in lists in lists") from None


def header_fields(line: str, parse: Callable[[str], Any] = _loads) -> dict[str, Any]:
    """The fields of a file's first line, by name. Raises ValueError if it is no header."""
    value = parse(line)
    if not isinstance(value, dict):
        raise ValueError("not a rank header")
    return value


def decode_header(line: str) -> RankHeader:
    """The header of a file. Raises ValueError if the line is no header. Fields of newer versions are ignored."""
    value = header_fields(line)
    known = {f.name for f in fields(RankHeader)}
    try:
        return RankHeader(**{k: v for k, v in value.items() if k in known})
    except TypeError as error:
        raise ValueError(f"not a rank header: {error}") from None


def named(line: str, columns: Columns, parse: Callable[[str], Any] = _loads) -> tuple[str, dict[str, Any]]:
    """A line's tag, and its values by the names of its columns; no values for an unknown tag.

    Values are as `parse` returns them and are not checked. Raises ValueError if the line has another form.
    """
    value = parse(line)
    if not isinstance(value, list) or not value or not isinstance(value[0], str):
        raise ValueError("not a record")
    tag = value.pop(0)
    if tag not in columns:
        return tag, {}
    values = _by_name(value, columns[tag])
    if tag == TAGS[Signature] and SHAPES in values:
        shapes = values[SHAPES]
        if SHAPES not in columns or not isinstance(shapes, list) or not all(isinstance(each, list) for each in shapes):
            raise ValueError("not a signature")
        values[SHAPES] = [_by_name(shape, columns[SHAPES]) for shape in shapes]
    return tag, values


def _by_name(values: list[Any], names: tuple[str, ...]) -> dict[str, Any]:
    """The values by column. If a line ends early, its last columns are missing and have their defaults."""
    if names and names[-1].endswith(REST):
        single = len(names) - 1
        return {**dict(zip(names[:-1], values, strict=False)), names[-1].removesuffix(REST): values[single:]}
    if len(values) > len(names):
        raise ValueError("longer than the header says")
    return dict(zip(names, values, strict=False))


def decode(line: str, columns: Columns = COLUMNS) -> tuple[str, Any]:
    """The tag and record of a line that ddlprof has just written; not checked.

    Without a record type, the plain values.
    """
    tag, values = named(line, columns)
    kind = KINDS.get(tag)
    if kind is None:
        return tag, values
    if kind is Signature:
        values[SHAPES] = tuple(_made(CollectiveShape, shape) for shape in values.get(SHAPES, ()))
    return tag, _made(kind, values)


def _made(kind: type[Any], values: dict[str, Any]) -> Any:
    known = {f.name: values[f.name] for f in fields(kind) if f.name in values}
    try:
        return kind(**{name: tuple(v) if isinstance(v, list) else v for name, v in known.items()})
    except TypeError as error:
        raise ValueError(f"damaged record: {error}") from None
