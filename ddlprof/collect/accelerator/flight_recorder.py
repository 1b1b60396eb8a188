"""Durations of NCCL's (and RCCL's) collectives from torch's Flight Recorder. Used only if the user asked for it.

With `TORCH_NCCL_ENABLE_TIMING` torch records an event before each collective. Its watchdog thread, which looks at
finished collectives anyway, writes the time between start and end into a ring of the latest collectives. Reading the
ring waits for nothing. The alternative, to keep each Work until it can be asked, would keep the output tensors alive.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ddlprof.base.real_time import time
from ddlprof.torch_private.collectives import flight_recorder
from ddlprof.torch_private.names import version_number
from ddlprof.writing.writer import FinishedStep

_TIMING = "TORCH_NCCL_ENABLE_TIMING"
_SIZE, _OLD_SIZE = "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"
_ENTRIES = "2000"
_SIZE_BY_DEFAULT = (2, 9)
"""From this version of torch on the ring exists by default, and the old variable for its size causes a warning."""
LEAST_TORCH = (2, 7)
"""The oldest version of torch whose ring is read. Before it, reading while the watchdog frees events may end the
process (pytorch#192232); since then events are kept for reuse."""
_EVENT_CACHE = "TORCH_NCCL_CUDA_EVENT_CACHE"
_EVERY_S = 1.0
_SLACK_NS = 5_000
"""The tolerance in ns between two clocks of the host that are read one after the other."""
_OFF = ("0", "n", "no", "f", "false")


def ask_for_timing(torch: Any) -> None:
    """Sets the variables that switch timing on, before a process group is made. Values set by the user are kept."""
    os.environ.setdefault(_TIMING, "1")
    if version_number(torch.__version__) < _SIZE_BY_DEFAULT:
        os.environ.setdefault(_OLD_SIZE, _ENTRIES)


def why_not(torch: Any) -> str | None:
    """Why durations cannot be read; None if they can."""
    if version_number(torch.__version__) < LEAST_TORCH:
        return f"needs torch {'.'.join(map(str, LEAST_TORCH))}, this is {torch.__version__}"
    if flight_recorder(torch) is None:
        return "this torch was built without NCCL's Flight Recorder"
    for name in (_TIMING, _SIZE, _OLD_SIZE, _EVENT_CACHE):
        if os.environ.get(name, "").lower() in _OFF:
            return f"{name} is {os.environ[name]}"
    return None


class FlightRecorder:
    """Sets the `duration` of collectives; for the helper thread. `dump` returns torch's ring, pickled."""

    def __init__(self, dump: Callable[[], bytes]) -> None:
        self._dump = dump
        self._next = 0.0
        self.in_vain: bool | None = None
        """Whether the ring was read and never contained a duration. None: it was not read."""

    def due(self, steps: Iterable[FinishedStep], last: bool = False) -> bool:
        """Whether it is time to read the ring again and one of these steps has collectives without a duration."""
        if time.perf_counter() < self._next and not last:
            return False
        return any(each.duration is None and each.end is None for step in steps for each in step.collectives)

    def fill(self, steps: Iterable[FinishedStep]) -> None:
        """Sets the durations of the collectives of these consecutive steps, as far as torch knows them."""
        import pickle  # imported here, as every run imports this file

        self._next = time.perf_counter() + _EVERY_S
        offset = time.time_ns() - time.perf_counter_ns()
        collectives = [each for step in steps for each in step.collectives]
        match(collectives, pickle.loads(self._dump()).get("entries", ()), offset)
        self.in_vain = self.in_vain is not False and all(each.duration is None for each in collectives)


def of_torch(torch: Any) -> FlightRecorder:
    """The recorder for torch's own ring. Raises RuntimeError if durations cannot be read."""
    reason = why_not(torch)
    if reason is not None:
        raise RuntimeError(reason)
    dump: Any = flight_recorder(torch)

    def read() -> bytes:
        import pickle

        if not torch.distributed.is_initialized():  # the ring may hold events of groups that no longer exist
            return pickle.dumps({})
        return bytes(dump(includeCollectives=True, includeStackTraces=False, onlyActive=False))  # traces are slow

    return FlightRecorder(read)


def match(collectives: Iterable[Any], entries: Iterable[dict[str, Any]], unix_offset_ns: int) -> None:
    """Sets `duration` of each collective that has an entry of its own in the ring.

    The entry of a collective is made between its `issued` and the next `issued` of the same group. Several entries in
    between are parts of one collective, of which one holds the duration.
    """
    by_group: dict[str, list[dict[str, Any]]] = {}
    for entry in entries:
        name = entry["pg_name"]
        by_group.setdefault(str(name if isinstance(name, str) else name[0]), []).append(entry)
    grouped: dict[str, list[Any]] = {}
    for each in collectives:
        grouped.setdefault(each.group.partition(":")[0], []).append(each)
    for group, mine in grouped.items():
        _match_group(mine, by_group.get(group, []), unix_offset_ns)


def _match_group(mine: Sequence[Any], entries: Sequence[dict[str, Any]], offset: int) -> None:
    place, made = 0, sorted(entries, key=lambda entry: entry["time_created_ns"])
    for index, each in enumerate(mine):
        begin = each.issued + offset - _SLACK_NS
        end = mine[index + 1].issued + offset - _SLACK_NS if index + 1 < len(mine) else None
        while place < len(made) and made[place]["time_created_ns"] < begin:
            place += 1
        found = []
        while place < len(made) and (end is None or made[place]["time_created_ns"] < end):
            found.append(made[place])
            place += 1
        if end is None:  # no later collective bounds its entries; only the first is surely its own
            del found[1:]
        timed = [entry["duration_ms"] for entry in found if entry.get("duration_ms") is not None]
        if len(timed) == 1 and each.duration is None and _alike(each.op, found):
            each.duration = round(timed[0] * 1e6)


def _alike(op: str, entries: Sequence[dict[str, Any]]) -> bool:
    """Whether one of the entries is of this operation."""
    wanted = _plain(op)
    return any(wanted in _plain(entry["profiling_name"]) for entry in entries)


def _plain(name: str) -> str:
    """The name without prefix and underscores: `_allgather_base_` and `nccl:_all_gather_base` become `allgather`."""
    plain = name.rpartition(":")[2].lower().replace("_", "")
    for word in ("base", "coalesced", "intotensor", "tensor"):
        plain = plain.replace(word, "")
    return plain
