"""The simulated step of a plan as a trace for Perfetto.

Each machine is a process; each device, and each direction of its links, is a track.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddlprof.base.text import plain
from ddlprof.extensions.hetero.problem import Problem
from ddlprof.extensions.hetero.simulation import COLLECTIVES, Lane, Slice
from ddlprof.extensions.hetero.unequal_plan import UnequalPlan
from ddlprof.report.trace_format import Event, process, trace_text, track

_WORDS = {"out": "network, out", "in": "network, in", "link": "links between its GPUs"}


def render(found: UnequalPlan) -> str:
    """The trace of the planned step, as JSON. Times are whole nanoseconds, in microseconds."""
    about = {"made_by": "ddlprof plan --format trace", "job": plain(found.job), "step_ms": found.step_s * 1e3}
    return "".join(trace_text(about, _events(found.problem, found.slices())))


def _events(problem: Problem, slices: tuple[Slice, ...]) -> Iterator[Event]:
    devices = problem.devices
    for number, machine in enumerate(devices.machines, start=1):
        yield process(number, plain(machine.name))
    yield process(len(devices.machines) + 1, "all machines")
    places = {lane: (_process(problem, lane), tid) for tid, lane in enumerate(_lanes(problem), start=100)}
    shown = {each.lane for each in slices}
    for lane, (pid, tid) in places.items():
        if lane in shown:
            yield from track(pid, tid, plain(_name(problem, lane)))
    for each in sorted(slices, key=lambda one: (one.begin_s, one.lane, one.end_s)):
        pid, tid = places[each.lane]
        begin_ns, end_ns = round(each.begin_s * 1e9), round(each.end_s * 1e9)
        if end_ns == begin_ns:
            continue
        event: Event = {
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
