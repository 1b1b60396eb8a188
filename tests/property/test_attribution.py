"""What holds for every stream of events, sensible or not: conservation, tiling, no dependence on the clock's origin."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ddlprof.collect.steps.attribution import StepAssembler
from ddlprof.collect.steps.loop import Gap
from ddlprof.model.classes import CLASSES
from ddlprof.model.events import Event, FirstSeen, Kind
from ddlprof.model.records import StepRow
from ddlprof.writing.writer import FinishedStep
from tests.unit.collect.ticking_device import TickingDevice

PAIRS = [
    (Kind.DATA_BEGIN, Kind.DATA_END),
    (Kind.FORWARD_BEGIN, Kind.FORWARD_END),
    (Kind.BACKWARD_BEGIN, Kind.BACKWARD_END),
    (Kind.OPTIMIZER_BEGIN, Kind.OPTIMIZER_END),
    (Kind.H2D_BEGIN, Kind.H2D_END),
    (Kind.COMM_BEGIN, Kind.COMM_END),
    (Kind.CHECKPOINT_BEGIN, Kind.CHECKPOINT_END),
    (Kind.ZERO_GRAD_BEGIN, Kind.ZERO_GRAD_END),
]
SINGLE = [Kind.EPOCH, Kind.COLLECTIVE, Kind.COMPILE, Kind.TRACED, Kind.GAP]

Tree = tuple[Any, int, int, list[Any]]
"""(what, nanoseconds before it, a number that chooses its payload, what happens inside)."""


def payload(kind: Kind, choice: int, time: int) -> tuple[Any, Any, Any]:
    loader, optimizer = choice % 3, choice % 4
    shares = [None, *((*pair, 5, 6, 7) for pair in ((0.0, 1.0), (1.0, 0.0), (0.3, 0.7), (1 / 3, 1 / 3)))]
    ends = [None, time + choice * 1000, time - choice]
    return {
        Kind.DATA_BEGIN: (loader, None, None),
        Kind.DATA_END: (loader, shares[choice % 5], [None, 0, 4, 7][choice % 4]),
        Kind.EPOCH: (loader, None, None),
        Kind.FORWARD_BEGIN: (choice % 2 == 0, choice % 3 == 0, [None, 4][choice % 2]),
        Kind.OPTIMIZER_BEGIN: (optimizer, None, None),
        Kind.OPTIMIZER_END: (optimizer, [False, True, lambda: True][choice % 3], FirstSeen("SGD", 10 * optimizer)),
        Kind.COMM_END: (choice % 2 == 0, None, None),
        Kind.BACKWARD_BEGIN: (choice % 7 == 0, None, None),
        Kind.GAP: (
            Gap((4, 5, 1), choice, (0, b""), (choice // 4, b""), [None, [(0, choice // 3)]][choice % 2]),
            None,
            None,
        ),
        Kind.COLLECTIVE: (SimpleNamespace(end=ends[choice % 3], need=None, exposed=None, stream=None), None, None),
    }.get(kind, (None, None, None))


def flatten(trees: list[Tree], events: list[Event], now: int) -> int:
    for what, pause, choice, inside in trees:
        now += pause
        begin, end = what if isinstance(what, tuple) else (what, None)
        events.append((begin, now, *payload(begin, choice, now)))
        if end is not None:
            now = flatten(inside, events, now) + choice
            events.append((end, now, *payload(end, choice, now)))
    return now


def tree(children: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
    return st.tuples(
        st.sampled_from(PAIRS), st.integers(0, 10**6), st.integers(0, 10**6), st.lists(children, max_size=3)
    )


leaf: st.SearchStrategy[Tree] = st.tuples(
    st.sampled_from([*PAIRS, *SINGLE]), st.integers(0, 10**6), st.integers(0, 10**6), st.just([])
)
loops = st.lists(st.recursive(leaf, tree, max_leaves=6), max_size=40)


def events_of(loop: list[Tree], origin: int = 0) -> list[Event]:
    events: list[Event] = []
    flatten(loop, events, origin)
    return events


def assemble(events: list[Event], origin: int = 0, unmeasured: tuple[str, ...] = ()) -> list[FinishedStep]:
    assembler = StepAssembler(origin)
    assembler.unmeasured.update(unmeasured)
    return [*(step for event in events for step in assembler.feed(event)), *assembler.finish()]


def classes(row: StepRow) -> list[int | None]:
    return [getattr(row, f"{name}_ns") for name in CLASSES]


def parts_of_compute(row: StepRow) -> list[int | None]:
    return [row.compute_forward_ns, row.compute_backward_ns, row.compute_optimizer_ns]


@given(loops, st.sets(st.sampled_from(["data", "h2d", "comm"])))
def test_classes_add_up_and_steps_tile_the_timeline(loop: list[Tree], unmeasured: set[str]) -> None:
    events = events_of(loop)
    steps = assemble(events, unmeasured=tuple(unmeasured))
    end: int | None = None
    for index, step in enumerate(steps):
        row = step.row
        assert row.step == index
        assert min(value for value in classes(row) if value is not None) >= 0
        assert sum(value or 0 for value in classes(row)) == row.step_ns
        assert all(getattr(row, f"{name}_ns") is None for name in unmeasured)
        if row.data_fetch_ns is not None and row.data_prep_ns is not None:
            assert min(row.data_fetch_ns, row.data_prep_ns) >= 0
            assert row.data_fetch_ns + row.data_prep_ns <= (row.data_ns or 0)
        parts = parts_of_compute(row)
        assert parts == [None] * 3 or (min(p or 0 for p in parts) >= 0 and sum(p or 0 for p in parts) == row.compute_ns)
        assert end is None or row.start_ns == end
        assert step.start == row.start_ns
        end = row.start_ns + row.step_ns
    if end is not None:
        assert end in {time for kind, time, *_ in events if kind in (Kind.OPTIMIZER_END, Kind.BACKWARD_END)}


step_times = st.fixed_dictionaries(
    {
        name: st.integers(0, 10**6)
        for name in ("data", "gap", "forward", "copy", "loss", "backward", "comm", "clip", "update", "log", "zero")
    }
)


@given(st.lists(st.lists(step_times, min_size=1, max_size=3), min_size=1, max_size=12), st.integers(0, 1 << 60))
def test_parts_of_a_plain_loop_are_what_it_does(steps: list[list[dict[str, int]]], origin: int) -> None:
    """Each step is one or more micro-batches, of which the last one's `clip`, `update` and `log` follow."""
    events: list[Event] = []
    now = origin

    def spend(duration: int, kind: Kind, a: Any = None, b: Any = None, c: Any = None) -> None:
        nonlocal now
        now += duration
        events.append((kind, now, a, b, c))

    for micro_batches in steps:
        for took in micro_batches:
            spend(0, Kind.DATA_BEGIN, 0)
            spend(took["data"], Kind.DATA_END, 0, None, 4)
            spend(took["gap"], Kind.FORWARD_BEGIN, True, True, 4)
            spend(took["forward"], Kind.H2D_BEGIN)
            spend(took["copy"], Kind.H2D_END)
            spend(0, Kind.FORWARD_END, True)
            spend(took["loss"], Kind.BACKWARD_BEGIN)
            spend(took["backward"], Kind.COMM_BEGIN)
            spend(took["comm"], Kind.COMM_END, False)
            spend(0, Kind.BACKWARD_END)
        last = micro_batches[-1]
        spend(0, Kind.ZERO_GRAD_BEGIN)
        spend(last["zero"], Kind.ZERO_GRAD_END)
        spend(last["clip"], Kind.OPTIMIZER_BEGIN, 0)
        spend(last["update"], Kind.OPTIMIZER_END, 0, False, FirstSeen("SGD", 10))
        now += last["log"]
    rows = [step.row for step in assemble(events, origin)]
    assert [parts_of_compute(row) for row in rows] == [
        [
            sum(took["forward"] + took["loss"] for took in batches) + sum(took["gap"] for took in batches[1:]),
            sum(took["backward"] for took in batches),
            sum(batches[-1][name] for name in ("zero", "clip", "update")),
        ]
        for batches in steps
    ]


@given(loops)
def test_exposed_shares_of_the_collectives_are_within_the_communication(loop: list[Tree]) -> None:
    for step in assemble(events_of(loop)):
        exposed = [c.exposed for c in step.collectives if c.exposed is not None]
        assert min(exposed, default=0) >= 0
        assert sum(exposed) <= (step.row.comm_ns or 0)


@given(loops, st.integers(1, 1 << 60))
def test_shifting_the_clock_changes_nothing(loop: list[Tree], shift: int) -> None:
    here = [step.row for step in assemble(events_of(loop))]
    there = [step.row for step in assemble(events_of(loop, shift), origin=shift)]
    assert here == there
    later = [step.row for step in assemble(events_of(loop, shift))]
    assert later == [replace(row, start_ns=row.start_ns + shift) for row in here]


@given(loops, st.lists(st.integers(1, 9), min_size=1))
def test_device_stamps_in_chunks_of_any_size_give_the_same_steps(loop: list[Tree], sizes: list[int]) -> None:
    """The device's clock resolves chunk by chunk; where the chunks end must not matter."""
    expected = [step.row for step in assemble(events_of(loop))]
    device = TickingDevice()
    origin = device.clock.resolve([device.event()])[0][1]
    events = deque((kind, device.at(time - origin), *rest) for kind, time, *rest in events_of(loop, origin))
    resolved: list[Event] = []
    while events:
        size = min(len(events), sizes[len(resolved) % len(sizes)])
        resolved += device.clock.resolve([events.popleft() for _ in range(size)])
    assert [step.row for step in assemble(resolved, origin)] == expected
