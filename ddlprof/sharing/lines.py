"""A rank's file for sharing: the columns that are allowed, each with what makes it fit to be shared.

A column or a kind of line that is not in `_allowed` is left out. Numbers stay as they are, so the analysis of the
shared run is that of the run itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from ddlprof.base.reading import parse_json
from ddlprof.model import codec
from ddlprof.model.codec import COLLECTIVES, REST, SHAPES, Columns
from ddlprof.model.records import RankHeader
from ddlprof.sharing import names as words
from ddlprof.sharing.names import Names
from ddlprof.store.flushes import take_apart
from ddlprof.store.numbers import DAMAGE
from ddlprof.store.rankfile import MAX_DAMAGED_LINES, MAX_LINE_CHARACTERS, read_header, read_record

Fit = Callable[[Any], Any]
"""Makes a value fit to be shared. Raises ValueError where it is not what the column holds."""

_LEFT_OUT = "not told in a shared run"
_DAMAGED = "[]\n"
"""Stands for a line that cannot be read, or a part of the file that is damaged: what comes after it counts as less."""
_TIMES = ("ready_us", "end_us", "need_us", "exposed_us")
"""The columns of the other file; all of them or none, as they have no separators."""


def number(value: Any) -> Any:
    """A number, or null."""
    if value is not None and not isinstance(value, (int, float)):
        raise ValueError("not a number")
    return value


def _numbers(value: Any) -> list[Any]:
    return [number(each) for each in value]


def _all(columns: str) -> dict[str, Fit]:
    return dict.fromkeys(columns.split(), number)


def _allowed(names: Names) -> dict[str, dict[str, Fit]]:
    """The columns that are shared, by the tag of the line."""
    return {
        "s": {
            **_all("step start_ns step_ns compute_ns compute_forward_ns compute_backward_ns compute_optimizer_ns"),
            **_all("data_ns data_fetch_ns data_prep_ns h2d_ns comm_ns other_ns rollout_ns microbatches"),
            **_all("samples peak_memory_bytes device_lag_ns flags signature"),
            "first_seqs": _numbers,
        },
        "a": _all(
            "first_step steps step_ns compute_ns data_ns data_fetch_ns data_prep_ns h2d_ns comm_ns other_ns"
            " microbatches samples"
        ),
        "g": {"number": number, "shapes": lambda shapes: shapes},  # their columns are below
        SHAPES: {"group": names.group, "op": names.operation, **_all("bytes ranks root")},
        "l": {"number": number, "text": names.place, "what": words.what},
        "q": {"step": number, "counts": _numbers},
        "c": _all(
            "time_ns cpu_percent memory_used_bytes process_rss_bytes gpu_percent gpu_memory_bytes gpu_power_w"
            " process_peak_rss_bytes gpu_peak_allocated_bytes gpu_peak_reserved_bytes process_private_bytes"
            " gpu_clock_mhz gpu_temperature_c gpu_throttle_reasons gpu_power_limit_w process_queued_ns"
        ),
        "n": {"source": words.source, "message": lambda _: _LEFT_OUT},
        "k": _all("hook_ns hook_steps helper_cpu_ns wall_ns"),
        "d": _all("step samples cpu_ns asked_bytes storage_bytes blocked_ns"),
        "w": _all("first_update updates window_ns work_ns comm_only_ns kernels"),
        "b": {**_all("ranks bytes duration_ns"), "op": names.operation},
        "t": _all("rank least_ns greatest_ns"),
        "p": {"what": words.span, **_all("start_ns duration_ns")},
        "e": {"status": words.status, **_all("exit_code time_ns")},
        "u": {
            "source": words.source,
            "one": lambda _: "reading failed",
            "many": lambda _: "readings failed",
            "count": number,
            "reason": lambda _: _LEFT_OUT,
        },
    }


class Origins:
    """Where the times of a shared run begin: no date and no uptime is told, and every difference stays."""

    def __init__(self, unix_ns: int, monotonic_ns: int, shown_unix_ns: int) -> None:
        self._monotonic_ns = monotonic_ns
        self._moved_ns = shown_unix_ns - unix_ns

    def unix(self, time_ns: int) -> int:
        """A unix time."""
        return max(time_ns + self._moved_ns, 0)

    def monotonic(self, time_ns: int) -> int:
        """A time of a monotonic clock."""
        return max(time_ns - self._monotonic_ns, 0)


def shared_header(header: RankHeader, names: Names, origins: Origins) -> RankHeader:
    """The first line of a rank's file, without who and where."""
    return RankHeader(
        rank=header.rank,
        world_size=header.world_size,
        local_rank=header.local_rank,
        attempt=header.attempt,
        host=names.host(header.host),
        node_id=names.node(header.node_id),
        pid=0,
        device=words.device(header.device),
        clock=words.clock(header.clock),
        origin_ns=origins.monotonic(header.origin_ns),
        origin_unix_ns=origins.unix(header.origin_unix_ns),
        job_id=names.job_id if header.job_id else "",
        launcher="",
        age_ns=header.age_ns,
        spans=header.spans,
    )


def shared_rank(text: bytes, times: bytes, label: str, names: Names, origins: Origins) -> tuple[bytes, bytes]:
    """The two files of a rank. Raises ValueError if not even the header can be read."""
    header, columns = read_header(text[: text.index(b"\n")].decode(errors="replace"), label)
    believed = take_apart(text, times, columns)
    allowed = _allowed(names)
    kept: Columns = {
        tag: tuple(name for name in columns[tag] if name.removesuffix(REST) in fits)
        for tag, fits in allowed.items()
        if tag in columns
    }
    has_times = columns.get(COLLECTIVES) == _TIMES
    if has_times:
        kept[COLLECTIVES] = _TIMES
    shared = shared_header(header, names, origins)
    head = {name: getattr(shared, name) for name in RankHeader.__slots__}
    lines = [json.dumps({**head, "columns": kept}, separators=(",", ":")) + "\n"]
    damaged = 0
    for index, line in enumerate(believed.lines):
        if index == believed.first_lost:
            lines.append(_DAMAGED)
        lines.append(_shared_line(line, columns, kept, allowed))
        damaged += lines[-1] is _DAMAGED
        if damaged > MAX_DAMAGED_LINES:  # nobody reads on
            break
    if believed.first_lost == len(believed.lines):
        lines.append(_DAMAGED)
    return "".join(lines).encode(), believed.times if has_times else b""


def _shared_line(line: str, columns: Columns, kept: Columns, allowed: Mapping[str, dict[str, Fit]]) -> str:
    try:
        if len(line) > MAX_LINE_CHARACTERS:
            return _DAMAGED
        tag, values = codec.named(line, columns, parse_json)
        if tag not in kept or tag in (SHAPES, COLLECTIVES):
            read_record(line, columns)  # what is damaged here makes readers trust less of what follows
            return ""
        if SHAPES in values:
            values[SHAPES] = [_row(shape, kept[SHAPES], allowed[SHAPES]) for shape in values[SHAPES]]
        return json.dumps([tag, *_row(values, kept[tag], allowed[tag])], separators=(",", ":")) + "\n"
    except (KeyError, *DAMAGE):
        return _DAMAGED


def _row(values: Mapping[str, Any], columns: tuple[str, ...], fits: Mapping[str, Fit]) -> list[Any]:
    """The values of the columns, up to the first that the line does not have."""
    row: list[Any] = []
    for column in columns:
        name = column.removesuffix(REST)
        if name not in values:
            break
        value = fits[name](values[name])
        row += value if column.endswith(REST) else [value]
    return row
