"""The kinds of lines in a rank's file, and the names of what they hold.

A file's header names its columns, and readers go by these names alone: what a file does not have, it has not measured,
and what this version does not know, it passes over. A name that ends in `...` takes the rest of its line.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeAlias

from ddlprof.model.records import (
    Aggregate,
    Calibration,
    ClockReading,
    CollectiveShape,
    CollectiveTimes,
    ContextRow,
    Drop,
    End,
    Flush,
    JobSpan,
    LoaderCost,
    LossValue,
    Note,
    Overhead,
    Samples,
    Signature,
    SourceLine,
    StepRow,
    WindowRow,
)

Columns: TypeAlias = dict[str, tuple[str, ...]]
"""Columns by the tag of a kind of line; `SHAPES` and `COLLECTIVES` are tags, too."""

KINDS: dict[str, type[Any]] = {
    "s": StepRow, "a": Aggregate, "g": Signature, "l": SourceLine, "q": Samples, "c": ContextRow, "n": Note,
    "k": Overhead, "d": LoaderCost, "w": WindowRow, "b": Calibration, "t": ClockReading, "e": End, "f": Flush,
    "u": Drop, "p": JobSpan, "v": LossValue,
}  # fmt: skip
"""The record of each tag."""
SHAPES = "shapes"
"""The columns of the shapes in a signature."""
COLLECTIVES = "collectives"
"""The columns of the other file: an unsigned number of 32 bits each."""
REST = "..."

_MOST_KINDS, _MOST_COLUMNS = 100, 1000


def _names(kind: type[Any]) -> tuple[str, ...]:
    return tuple(f.name + (REST if f.type == "tuple[int, ...]" else "") for f in fields(kind))


COLUMNS: Columns = {
    **{tag: _names(kind) for tag, kind in KINDS.items()},
    SHAPES: _names(CollectiveShape),
    COLLECTIVES: _names(CollectiveTimes),
}
"""The columns that this version writes."""


def columns_of(header: dict[str, Any]) -> Columns:
    """The columns of a file, by the fields of its header. Raises ValueError if they are damaged."""
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
