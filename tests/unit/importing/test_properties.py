"""Whatever a trace holds, classes add up; clocks, orders of events and of files change nothing."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ddlprof.importing import intervals
from ddlprof.importing.job import as_job
from ddlprof.importing.reading import OutsideEvents
from ddlprof.importing.trace import RankTrace, as_rank
from ddlprof.importing.trace_columns import Collector
from ddlprof.importing.writing import steps_of
from ddlprof.model.records import StepRow
from tests.unit.importing.traces import (
    BACKWARD_THREAD,
    COMM_STREAM,
    COMPUTE_STREAM,
    GEMM,
    NCCL,
    Device,
    Event,
    backward,
    collective_args,
    device_trace,
    event,
    forward,
    host_trace,
    loading,
    mark,
    of_rank,
    update,
)

TIME = st.integers(0, 4000)
LENGTH = st.integers(0, 1500)
KINDS = st.sampled_from(["forward", "backward", "update", "loading", "gemm", "nccl", "copy", "gloo", "issue", "op"])


@st.composite
def traces(draw: Any) -> list[Event]:
    """Marks with anything anywhere, on the host and mostly on a device."""
    device = Device()
    events = [mark(number, 1000 * number, draw(st.integers(1, 1000))) for number in range(draw(st.integers(0, 4)))]
    for kind, at, length in draw(st.lists(st.tuples(KINDS, TIME, LENGTH), max_size=25)):
        made = {"forward": forward, "update": update, "loading": loading}.get(kind)
        if made is not None:
            events.append(made(at, length))
        elif kind == "backward":
            events.append(backward(at, length, draw(st.sampled_from([100, BACKWARD_THREAD]))))
        elif kind == "gloo":
            events.append(event("user_annotation", "gloo:all_reduce", at, length, 102))
        elif kind in ("issue", "op"):
            events.append(event("cpu_op", "c10d::allreduce_" if kind == "issue" else "aten::add", at, length))
        elif draw(st.booleans()):
            name = {"gemm": GEMM, "nccl": NCCL, "copy": "Memcpy HtoD (Pageable -> Device)"}[kind]
            stream = COMM_STREAM if kind == "nccl" else COMPUTE_STREAM
            args = collective_args() if kind == "nccl" else {}
            cat = "gpu_memcpy" if kind == "copy" else "kernel"
            device.run(name, at - draw(st.integers(0, 500)), at, length, stream, cat=cat, **args)
    return [*events, *(each for each in device.events if each["ts"] >= 0)]


def read(events: list[Event], **beside: Any) -> RankTrace:
    collector = Collector()
    for each in events:
        collector.add(each)
    return as_rank(Path("a.json"), collector.finish(), OutsideEvents(beside, has_events=True))


def rows(trace: RankTrace) -> list[StepRow]:
    return [step.row for step in steps_of(trace)]


@given(traces())
@settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.too_slow])
def test_classes_add_up_and_none_is_negative(events: list[Event]) -> None:
    for row in rows(read(events)):
        classes = [row.compute_ns, row.data_ns, row.h2d_ns, row.comm_ns, row.other_ns]
        assert sum(value or 0 for value in classes) == row.step_ns
        assert all(value is None or value >= 0 for value in classes)
        parts = [row.compute_forward_ns, row.compute_backward_ns, row.compute_optimizer_ns]
        if None not in parts:
            assert sum(value or 0 for value in parts) == row.compute_ns
            assert min(value or 0 for value in parts) >= 0


@given(traces(), st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
def test_the_order_of_events_changes_nothing(events: list[Event], order: random.Random) -> None:
    mixed = list(events)
    order.shuffle(mixed)
    assert rows(read(mixed)) == rows(read(events))


@given(traces(), st.integers(0, 10**15))
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
def test_another_clock_changes_nothing(events: list[Event], later: int) -> None:
    moved = [{**each, "ts": each["ts"] + later} for each in events]
    assert rows(read(moved)) == rows(read(events))


ANYTHING = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=4), st.just("HtoD"), st.just("Float")
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=2)),
    max_leaves=4,
)
FIELDS = st.sampled_from(["ph", "cat", "name", "pid", "tid", "ts", "dur", "args"])
ARGUMENTS = st.sampled_from([
    "device", "stream", "correlation", "External id", "Collective name", "Process Group Name", "Process Group Ranks",
    "Group size", "In msg nelems", "dtype", "Input Dims", "Input type", "Sequence number", "Fwd thread id",
])  # fmt: skip
BESIDE = st.sampled_from(
    ["distributedInfo", "deviceProperties", "baseTimeNanoseconds", "host_name", "cuda_runtime_version"]
)


@given(
    traces(),
    st.lists(st.tuples(st.integers(0, 30), FIELDS, ANYTHING), max_size=6),
    st.lists(st.tuples(st.integers(0, 30), ARGUMENTS, ANYTHING), max_size=6),
    st.dictionaries(BESIDE, ANYTHING, max_size=3),
    st.dictionaries(st.sampled_from(["rank", "world_size", "backend", "pg_config"]), ANYTHING, max_size=3),
)
@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
def test_whatever_is_in_a_trace_makes_a_run_or_a_line(
    events: list[Event],
    fields: list[tuple[int, str, Any]],
    arguments: list[tuple[int, str, Any]],
    beside: dict[str, Any],
    distributed: dict[str, Any],
) -> None:
    damaged = [{**each, "args": dict(each["args"])} for each in events]
    for index, name, value in arguments[: len(damaged)]:
        damaged[index % len(damaged)]["args"][name] = value
    for index, name, value in fields[: len(damaged)]:
        damaged[index % len(damaged)][name] = value
    trace = read(damaged, **{"distributedInfo": distributed, **beside})
    assert 0 <= trace.begin_ns <= trace.end_ns < 2**62
    for row in rows(trace):
        assert row.start_ns >= 0
        known = (row.compute_ns, row.data_ns, row.h2d_ns, row.comm_ns, row.other_ns)
        assert sum(each or 0 for each in known) == row.step_ns
    as_job([trace])


@pytest.mark.parametrize("made", [device_trace, host_trace])
def test_nanoseconds_and_fractions_are_the_same_time(made: Any) -> None:
    """Some tools write nanoseconds; Kineto writes microseconds, whole ones or with fractions."""
    unix_us = 1_700_000_000_000_000
    events = made(begin=unix_us)
    in_ns = [{**each, "ts": 1000 * int(each["ts"]), "dur": 1000 * int(each["dur"])} for each in events]
    fractions = [{**each, "ts": float(each["ts"]), "dur": float(each["dur"])} for each in events]
    assert rows(read(in_ns)) == rows(read(fractions)) == rows(read(events))
    assert read(in_ns).begin_ns == read(events).begin_ns


def test_the_order_of_files_changes_nothing() -> None:
    one, two = (read(device_trace(late_us=late), **of_rank(rank, 2)) for rank, late in ((0, 0), (1, 50)))
    assert list(as_job([one, two]).ranks) == list(as_job([two, one]).ranks) == [0, 1]
    assert as_job([two, one]).ranks[0] is one


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=8),
       st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=8), st.integers(0, 5))  # fmt: skip
@settings(deadline=None, max_examples=150)
def test_sets_of_spans(one: list[tuple[int, int]], two: list[tuple[int, int]], pause: int) -> None:
    """Against sets of single moments."""

    def made(spans: list[tuple[int, int]], pause: int = 0) -> intervals.Spans:
        begin = intervals.column([b for b, _ in spans])
        return intervals.merged(begin, begin + intervals.column([n for _, n in spans]), pause)

    def moments(spans: intervals.Spans) -> set[int]:
        pairs = zip(spans.begin.tolist(), spans.end.tolist(), strict=True)
        return {moment for begin, end in pairs for moment in range(begin, end)}

    a, b = made(one), made(two)
    of_a = {moment for begin, length in one for moment in range(begin, begin + length)}
    of_b = {moment for begin, length in two for moment in range(begin, begin + length)}
    assert (moments(a), moments(intervals.common(a, b))) == (of_a, of_a & of_b)
    assert moments(intervals.union(a, b)) == of_a | of_b
    window = intervals.column([10]), intervals.column([40])
    inside = set(range(10, 40))
    lengths = [int(each[0]) for each in intervals.by_priority((a, b), *window)]
    assert lengths == [len(of_a & inside), len((of_b - of_a) & inside), len(inside - of_a - of_b)]
    gaps = made(one, pause)
    assert of_a <= moments(gaps)
    assert (gaps.begin[1:] - gaps.end[:-1] > pause).all()
    time = np.arange(80)
    assert intervals.holds(a, time).tolist() == [moment in of_a for moment in range(80)]
    outside = intervals.first_outside(a, time).tolist()
    assert outside == [next(m for m in range(moment, 200) if m not in of_a) for moment in range(80)]
