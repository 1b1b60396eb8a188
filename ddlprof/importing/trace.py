"""Makes one rank of one trace: its steps with their classes, its collectives, and what the trace tells of itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ddlprof.importing import device, host
from ddlprof.importing.intervals import IntArray, empty
from ddlprof.importing.reading import Advance, NoTraceError, OutsideEvents, events
from ddlprof.importing.steps import (
    HostSteps,
    Steps,
    Transfers,
    backward_of_all,
    host_steps,
    only_whole,
    passes_in,
    spans_of,
    training_thread,
)
from ddlprof.importing.trace_columns import Collector, TraceColumns
from ddlprof.model.records import WindowRow

_LARGEST_BASE_NS = 2**61
_SHOWN_NAMES = 3
_SHOWN_CHARACTERS = 80
_LEAST_UNKNOWN_SHARE = 0.005
_LONGEST_TEXT = 200
_UNSEEN = (
    "device: the trace does not show what the job's device ({device}) did, or not in a form that is known here: of the "
    "classes only the training thread's waits for batches are measured, and all else is in other"
)


@dataclass(frozen=True)
class TraceInfo:
    """What a trace tells of the job and the machine; None: not in the trace."""

    rank: int | None
    world_size: int | None
    backend: str | None
    groups: list[tuple[str, int]] | None
    """Name and size of each process group."""
    host: str | None
    gpus: dict[int, str]
    """The names of the devices of the machine by number."""
    versions: dict[str, str]
    base_ns: int


@dataclass(frozen=True)
class RankTrace:
    """One rank, made of its trace."""

    path: Path
    about: TraceInfo
    device: int | None
    """The number of the device whose timeline is used; None: the host's timeline."""
    device_name: str
    begin_ns: int
    """The first recorded moment, in ns of unix time, like all times except those in `steps`."""
    end_ns: int
    steps: Steps
    passes: IntArray
    transfers: Transfers
    window: WindowRow | None
    torn: bool
    notes: list[str] = field(default_factory=list)
    process: str | None = None
    """The process of the training thread, by the number that its system gave it; None: not known."""


def read_trace(path: Path, advance: Advance) -> RankTrace:
    """Reads a trace and makes steps of it. Raises UserError if it cannot be read, NoTraceError if it is no trace."""
    collector, beside = Collector(), OutsideEvents()
    for event in events(path, beside, advance):
        collector.add(event)
    found = collector.finish()
    if not found.events:
        torn = ": it ends before its first whole event" if beside.torn else ""
        raise NoTraceError(f"{path}: is no trace of torch.profiler: no operator, kernel or range in it{torn}")
    return as_rank(path, found, beside)


def as_rank(path: Path, found: TraceColumns, beside: OutsideEvents) -> RankTrace:
    """Makes one rank of the columns of a trace."""
    about = about_trace(beside.values)
    marks = host_steps(found)
    thread = training_thread(found, marks)
    if beside.torn:
        marks = only_whole(found, marks, thread)
    notes = [*_notes_of_reading(found, beside), *marks.notes]
    number, window, name = None, None, "cpu"
    if len(found.activities):
        number, devices = device.busiest_device(found)
        if devices > 1:
            notes.append(f"{devices} devices are in the trace: the steps are those of device {number}, the busiest")
        steps, window, transfers = device.device_steps(found, marks, thread, number)
        name = _gpu(about.gpus, number, found.other_device)
        notes += _notes_of_kernels(found)
    else:
        unseen = _unseen_device(found, about)
        if unseen is not None:
            name = unseen
            notes.append(_UNSEEN.format(device=unseen))
        steps, transfers = host.host_steps_timed(found, marks, thread, _only_group(about), unseen is not None)
    notes += _notes_of_transfers(transfers)
    if not found.loading:
        notes.append("data: the trace has no ranges of a DataLoader, so waiting for input is in other or compute")
    backward, loading = (
        backward_of_all(found),
        spans_of(found.loading.get(thread, None)) if thread is not None else empty(),
    )
    passes = passes_in(marks.begin, marks.end, host.forward_of(found, thread), backward, loading)
    begin, end = _extent(found, marks, steps)
    return RankTrace(
        path, about, number, name, begin + about.base_ns, end + about.base_ns, steps, passes, transfers, window,
        beside.torn, notes, found.processes.get(thread) if thread is not None else None,
    )  # fmt: skip


def _extent(found: TraceColumns, marks: HostSteps, steps: Steps) -> tuple[int, int]:
    begins = [int(column[0]) for column in (marks.begin, steps.begin) if len(column)]
    ends = [int(column[-1]) for column in (marks.end, steps.end) if len(column)]
    if len(found.activities):
        begins.append(min(found.activities.begin))
        ends.append(max(found.activities.end))
    return min(begins, default=0), max(ends, default=0)


def _unseen_device(found: TraceColumns, about: TraceInfo) -> str | None:
    """The name of the device if the training used one that the trace does not show; None for a training on the host."""
    if found.other_device is not None:
        return found.other_device
    talks = bool(found.issued or found.messages or found.waits) or (about.world_size or 1) > 1
    off_host = talks and not found.transfers and "nccl" in (about.backend or "")
    return _gpu(about.gpus, 0) if off_host or len(found.launch_correlation) else None


def _only_group(about: TraceInfo) -> tuple[str, int] | None:
    if about.groups is not None:
        return about.groups[0] if len(about.groups) == 1 else None
    return ("0", about.world_size) if about.world_size else None


def _notes_of_reading(found: TraceColumns, beside: OutsideEvents) -> list[str]:
    notes = []
    if beside.torn:
        notes.append("the trace is torn: what is whole of it was read, and what came after is missing")
    unreadable = found.unreadable + beside.damaged
    if unreadable:
        which = "1 event is" if unreadable == 1 else f"{unreadable} events are"
        notes.append(f"{which} left out, as what the trace says there could not be read")
    return notes


def _notes_of_transfers(transfers: Transfers) -> list[str]:
    known = [message.bytes is not None for message in transfers.messages]
    told = sum(known[which] for which in transfers.message.tolist() if which >= 0)
    count = len(transfers.message)
    if told == count:
        return []
    return [
        f"comm: {count - told} of {count} collectives tell no group or size, so they are not compared over ranks "
        "(newer torch writes both beside NCCL's kernels; on the CPU record_shapes=True does)"
    ]


def _notes_of_kernels(found: TraceColumns) -> list[str]:
    """Notes on kernels whose kind is not known, with their share of the time in kernels and copies."""
    total = int((np.frombuffer(found.activities.end, np.int64) - np.frombuffer(found.activities.begin, np.int64)).sum())
    unknown = sum(found.unknown_ns.values())
    if not total:
        return []
    if unknown < _LEAST_UNKNOWN_SHARE * total:
        return [f"unclassified: {100 * unknown / total:.1f} % of the time in kernels, counted as compute"]
    first = sorted(found.unknown_ns, key=lambda name: (-found.unknown_ns[name], name))[:_SHOWN_NAMES]
    shown = ", ".join(name[:_SHOWN_CHARACTERS] for name in first)
    return [
        f"unclassified: {100 * unknown / total:.1f} % of the time in kernels is in some whose names say nothing, "
        f"counted as compute: {shown}"
    ]


def about_trace(values: dict[str, Any]) -> TraceInfo:
    """Reads the fields beside the events; unexpected values are ignored.

    Nothing else is taken over, as traces contain environments and command lines, which may include secrets.
    """
    said = values.get("distributedInfo")
    distributed: dict[str, Any] = said if isinstance(said, dict) else {}
    devices = values.get("deviceProperties")
    known = [d for d in devices if isinstance(d, dict)] if isinstance(devices, list) else []
    gpus = {place if (number := _whole(d.get("id"), 0)) is None else number: _text(d.get("name"))
            for place, d in enumerate(known)}  # fmt: skip
    base = values.get("baseTimeNanoseconds")
    host_name = values.get("host_name", values.get("hostname"))
    return TraceInfo(
        rank=_whole(distributed.get("rank"), 0),
        world_size=_whole(distributed.get("world_size"), 1),
        backend=_text(distributed.get("backend")),
        groups=_groups(distributed.get("pg_config")),
        host=_text(host_name),
        gpus={number: gpu for number, gpu in gpus.items() if gpu},
        versions=_versions(values, distributed),
        base_ns=base if isinstance(base, int) and 0 <= base < _LARGEST_BASE_NS else 0,
    )


def _gpu(gpus: dict[int, str], number: int, kind: str | None = None) -> str:
    """The name of the device with this number; if there is none, the name that all devices share, or their kind."""
    alike = set(gpus.values())
    return gpus.get(number) or (alike.pop() if len(alike) == 1 else kind or "unknown GPU")


def _groups(config: Any) -> list[tuple[str, int]] | None:
    if not isinstance(config, list):
        return None
    found = [
        (str(g.get("pg_name"))[:_LONGEST_TEXT], _whole(g.get("pg_size"), 1)) for g in config if isinstance(g, dict)
    ]
    return [(name, size) for name, size in found if size is not None] or None


def _versions(values: dict[str, Any], distributed: dict[str, Any]) -> dict[str, str]:
    found = {}
    cuda = _whole(values.get("cuda_runtime_version"), 1000)
    if cuda is not None:
        found["cuda"] = f"{cuda // 1000}.{cuda % 1000 // 10}"
    nccl = _text(distributed.get("nccl_version"))
    if nccl is not None:
        found["nccl"] = nccl
    return found


def _whole(value: Any, least: int) -> int | None:
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value[:20])
    return value if type(value) is int and least <= value < 10**9 else None


def _text(value: Any) -> str | None:
    return value[:_LONGEST_TEXT] if isinstance(value, str) and value else None
