"""What the document of the trace event format asks of the events that ddlprof writes, and what Perfetto drops."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from typing import Any

KEYS = {
    "M": {"ph", "name", "pid", "args"},
    "X": {"ph", "name", "cat", "pid", "tid", "ts", "dur", "args"},
    "i": {"ph", "name", "s", "pid", "tid", "ts", "args"},
    "C": {"ph", "name", "pid", "ts", "args"},
    "s": {"ph", "name", "cat", "id", "pid", "tid", "ts"},
    "f": {"ph", "name", "cat", "id", "pid", "tid", "ts", "bp"},
}
"""Every phase that we write, with its keys, no more and no less; names of threads have a `tid` as well."""
OF_PROCESSES, OF_THREADS = {"process_name", "process_sort_index"}, {"thread_name", "thread_sort_index"}


def problems(trace: dict[str, Any]) -> list[str]:
    """Whatever is wrong with the trace, one line each."""
    events = trace.get("traceEvents")
    if not isinstance(events, list):
        return ["there is no list of events"]
    found = [problem for event in events for problem in _of_event(event)]
    return found or [*_of_names(events), *_of_slices(events), *_of_counters(events), *_of_flows(events)]


def _of_event(event: dict[str, Any]) -> list[str]:
    phase = event.get("ph")
    expected = KEYS.get(str(phase))
    if expected is None:
        return [f"unknown phase {phase!r}"]
    if phase == "M" and event.get("name") in OF_THREADS:
        expected = expected | {"tid"}
    if set(event) != expected:
        return [f"{phase}: keys {sorted(set(event) ^ expected)} too many or missing"]
    wrong: list[str] = [
        key for key in ("pid", "tid", "ts", "dur", "id") if key in event and type(event[key]) is not int
    ]
    wrong += [key for key in ("pid", "tid", "dur", "id") if event.get(key, 1) <= 0]
    wrong += ["ts"] if event.get("ts", 0) < 0 else []
    wrong += [] if event["name"] else ["name"]
    if phase == "M" and event["name"] not in OF_PROCESSES | OF_THREADS:
        wrong.append("name")
    return [f"{phase}: wrong {key}: {event[key]!r}" for key in wrong]


def _of_names(events: list[dict[str, Any]]) -> list[str]:
    """Every process and track that is used has a name and a place, once; a thread's number is of one process."""
    named = Counter((e["name"], e["pid"], e.get("tid")) for e in events if e["ph"] == "M")
    used = {(name, e["pid"], None) for e in events for name in OF_PROCESSES}
    used |= {(name, e["pid"], e["tid"]) for e in events if "tid" in e for name in OF_THREADS}
    processes = defaultdict(set)
    for event in events:
        if "tid" in event:
            processes[event["tid"]].add(event["pid"])
    return [
        *(f"{key} {number} times" for key, number in named.items() if number != 1),
        *(f"{key} missing" for key in used - set(named)),
        *(f"thread {tid} of several processes" for tid, pids in processes.items() if len(pids) > 1),
    ]


def _tracks(events: list[dict[str, Any]]) -> dict[tuple[int, int], list[dict[str, Any]]]:
    tracks = defaultdict(list)
    for event in events:
        if event["ph"] in "Xi":
            tracks[event["pid"], event["tid"]].append(event)
    return tracks


def _of_slices(events: list[dict[str, Any]]) -> list[str]:
    """The slices of a track are in order, and each lies inside or beside every other."""
    found = []
    for track, slices in _tracks(events).items():
        around: list[int] = []
        before = 0
        for one in slices:
            if one["ts"] < before:
                found.append(f"track {track}: {one['name']} at {one['ts']} comes after {before}")
            before = one["ts"]
            while around and around[-1] <= one["ts"]:
                around.pop()
            end = one["ts"] + one.get("dur", 0)
            if around and end > around[-1]:
                found.append(f"track {track}: {one['name']} at {one['ts']} ends after what it begins in")
            around.append(end)
    return found


def _of_counters(events: list[dict[str, Any]]) -> list[str]:
    found: list[str] = []
    last: dict[tuple[int, str], int] = defaultdict(int)
    for event in events:
        if event["ph"] != "C":
            continue
        key = event["pid"], event["name"]
        if event["ts"] < last[key]:
            found.append(f"counter {key} goes back to {event['ts']}")
        last[key] = event["ts"]
        if not event["args"] or not all(math.isfinite(value) for value in event["args"].values()):
            found.append(f"counter {key} without a number")
    return found


def _of_flows(events: list[dict[str, Any]]) -> list[str]:
    """A flow has one beginning and one end, not before it, each inside a slice of its track, and on two tracks."""
    ends = defaultdict(list)
    tracks = _tracks(events)
    found = []
    for event in events:
        if event["ph"] not in "sf":
            continue
        ends[event["id"]].append(event)
        around = [s for s in tracks[event["pid"], event["tid"]] if s["ts"] <= event["ts"] < s["ts"] + s.get("dur", 0)]
        if not around:
            found.append(f"flow {event['id']}: {event['ph']} is in no slice")
    for number, both in ends.items():
        if [event["ph"] for event in both] != ["s", "f"]:
            found.append(f"flow {number}: {[event['ph'] for event in both]}")
        elif both[1]["ts"] < both[0]["ts"] or both[0]["tid"] == both[1]["tid"]:
            found.append(f"flow {number}: does not lead on")
    return found
