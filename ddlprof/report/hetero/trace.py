"""The simulated step of a plan in the trace event format, which Perfetto opens: a process for each machine, a track for
each device and for each direction of its links."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from ddlprof.base.text import plain
from ddlprof.hetero.problem import Problem
from ddlprof.hetero.simulation import COLLECTIVES, Lane, Step

_WORDS = {"out": "network, out", "in": "network, in", "link": "links between its GPUs"}


def render(job: str, problem: Problem, step: Step) -> str:
    """The trace of a step that was simulated with its slices, as JSON. Times are whole nanoseconds, in microseconds."""
    about = {"made_by": "ddlprof plan --format trace", "job": plain(job), "step_ms": step.step_s * 1e3}
    head = f'{{"displayTimeUnit": "ms", "otherData": {json.dumps(about, ensure_ascii=False)}, "traceEvents": [\n'
    events = (json.dumps(event, allow_nan=False, ensure_ascii=False) for event in _events(problem, step))
    return head + ",\n".join(events) + "\n]}\n"


def _events(problem: Problem, step: Step) -> Iterator[dict[str, Any]]:
    devices = problem.devices
    for number, machine in enumerate(devices.machines, start=1):
        yield {"ph": "M", "name": "process_name", "pid": number, "args": {"name": plain(machine.name)}}
    yield {
        "ph": "M", "name": "process_name", "pid": len(devices.machines) + 1, "args": {"name": "all machines"},
    }  # fmt: skip
    places = {lane: (_process(problem, lane), tid) for tid, lane in enumerate(_lanes(problem), start=100)}
    shown = {each.lane for each in step.slices}
    for lane, (pid, tid) in places.items():
        if lane in shown:
            name = _name(problem, lane)
            yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": plain(name)}}
            yield {"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid, "args": {"sort_index": tid}}
    for each in sorted(step.slices, key=lambda one: (one.begin_s, one.lane, one.end_s)):
        pid, tid = places[each.lane]
        begin_ns, end_ns = round(each.begin_s * 1e9), round(each.end_s * 1e9)
        if end_ns == begin_ns:
            continue
        event: dict[str, Any] = {
            "ph": "X", "name": each.name, "pid": pid, "tid": tid,
            "ts": begin_ns / 1e3, "dur": (end_ns - begin_ns) / 1e3,
        }  # fmt: skip
        if each.group >= 0:
            group = problem.groups[each.group]
            event["args"] = {"layers": plain(group.name), "gradient_bytes": group.gradient_bytes}
        yield event


def _lanes(problem: Problem) -> Iterator[Lane]:
    for device in problem.devices.all:
        yield "device", device.index
    for number in range(len(problem.devices.machines)):
        for kind in _WORDS:
            yield kind, number
    yield COLLECTIVES


def _process(problem: Problem, lane: Lane) -> int:
    kind, number = lane
    if kind == "device":
        return problem.devices.all[number].machine + 1
    return len(problem.devices.machines) + 1 if lane == COLLECTIVES else number + 1


def _name(problem: Problem, lane: Lane) -> str:
    kind, number = lane
    return problem.devices.all[number].name if kind == "device" else _WORDS.get(kind, kind)
