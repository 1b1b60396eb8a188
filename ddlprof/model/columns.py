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

_SUMS = ("step_ns", "compute_ns", "data_ns", "data_fetch_ns", "data_prep_ns", "h2d_ns", "comm_ns", "other_ns",
         "microbatches", "samples")  # fmt: skip
SCHEMA_1: Columns = {
    "s": ("step", "start_ns", *_SUMS, "flags", "signature", "first_seqs..."),
    "a": ("first_step", "steps", *_SUMS),
    "g": ("number", "shapes"),
    "l": ("number", "text", "what"),
    "q": ("step", "counts..."),
    "o": ("counts...",),
    "c": ("time_ns", "cpu_percent", "memory_used_bytes", "process_rss_bytes", "gpu_percent", "gpu_memory_bytes",
          "gpu_power_w"),
    "n": ("source", "message"),
    "k": ("hook_ns", "hook_steps", "helper_cpu_ns", "wall_ns"),
    "d": ("step", "samples", "cpu_ns", "asked_bytes", "storage_bytes"),
    "w": ("first_update", "updates", "window_ns", "work_ns", "comm_only_ns", "kernels"),
    "b": ("ranks", "bytes", "duration_ns", "op"),
    "t": ("rank", "least_ns", "greatest_ns"),
    "e": ("status", "exit_code", "time_ns"),
    SHAPES: ("group", "op", "bytes", "ranks", "root"),
    COLLECTIVES: ("ready_us", "end_us", "need_us", "exposed_us"),
}  # fmt: skip
"""The columns of files whose header does not name them, by the names that their fields have now."""
READ_KINDS = {**KINDS, "o": Samples}


def columns_of(header: dict[str, Any]) -> Columns:
    """The columns of a file, by the fields of its header. Raises ValueError if they are damaged."""
    if "columns" not in header:
        if header.get("schema") != 1:
            raise ValueError("the header names no columns")
        return SCHEMA_1
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
