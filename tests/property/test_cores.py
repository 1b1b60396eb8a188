"""The core in C does what the one in Python does, whatever events come in whatever order."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlprof.collect import core
from ddlprof.collect.process.clocks import ThreadClock
from ddlprof.collect.steps.loop import HUGE_EARLY_GAP_NS, HUGE_GAP_NS, OperatorLog
from ddlprof.model.events import IterationStart, Kind
from tests.unit.collect.cores import CORES, Core

pytestmark = pytest.mark.skipif(not core.IN_C, reason="the core in C was not built")

PAUSES_NS = (0, 1_000, 249_999, 250_000, 400_000, HUGE_GAP_NS + 1, 3 * HUGE_EARLY_GAP_NS)
HOOKS = ("capture", "in_window", "before_waiting", "before_update", "at_update")
CHANGES = (
    "active",
    "gaps",
    "early",
    "rounds",
    "thread",
    "unstamped",
    "next_update",
    "take_rest",
    "taken",
    "kernel",
    *HOOKS,
)

event = st.tuples(
    st.sampled_from(list(Kind)),
    st.sampled_from([None, True, False, 0, 1, 2]),
    st.sampled_from(PAUSES_NS),
    st.booleans(),
)
change = st.tuples(st.sampled_from(CHANGES), st.integers(0, 3))
usual: st.SearchStrategy[list[tuple[Kind, Any]]] = st.sampled_from(
    [
        [(Kind.DATA_BEGIN, 0), (Kind.DATA_END, 0), (Kind.FORWARD_BEGIN, True), (Kind.FORWARD_END, True)],
        [(Kind.BACKWARD_BEGIN, None), (Kind.BACKWARD_END, None)],
        [(Kind.OPTIMIZER_BEGIN, 0), (Kind.OPTIMIZER_END, 0)],
        [(Kind.ZERO_GRAD_BEGIN, None), (Kind.ZERO_GRAD_END, None)],
    ]
)
phase = st.tuples(usual, st.sampled_from(PAUSES_NS)).map(lambda drawn: [(*pair, drawn[1], True) for pair in drawn[0]])
stories = st.lists(st.one_of(phase, event.map(lambda one: [one]), change.map(lambda one: [one])), max_size=60)


class Clock(ThreadClock):
    """Half of the time the thread computes; the kernel tells of its waiting until it does no more."""

    def __init__(self) -> None:
        self.now = self.cpu = 0
        self.tells = True
        self.cpu_ns = lambda: self.cpu
        self.waiting = self.tell

    def tell(self) -> bytes:
        if not self.tells:
            raise OSError
        return f"{self.cpu} {self.now - self.cpu} 0".encode()


class Log(OperatorLog):
    def __init__(self, told: list[Any]) -> None:
        self._told = told

    def start(self) -> bool:
        self._told.append("start")
        return len(self._told) % 3 > 0

    def stop(self, recorded: bool = False) -> Any:
        self._told.append("stop")
        return [(0, 1)]


def tell(which: Core, story: list[list[tuple[Any, ...]]], chunk_events: int, fails_at: int) -> list[Any]:
    """All that can be seen of a recorder to which this happens."""
    clock = Clock()
    told: list[Any] = []
    stamps, ticks = itertools.count(1), itertools.count(1, 10)

    def stamp() -> int:
        number = next(stamps)
        if number == fails_at:
            raise ValueError("no time")
        return number

    recorder = which.recorder(stamp)
    recorder.loop = which.loop(lambda: clock, lambda: clock.now)
    recorder.loop.log = Log(told)
    recorder.chunk_events, recorder.most_waiting = chunk_events, 5
    recorder.cost_clock, recorder.widest_gap = lambda: next(ticks), 7
    recorder.bare_hook = hook(told, "bare", 0)
    for kind, *rest in itertools.chain.from_iterable(story):
        if isinstance(kind, str):
            alter(recorder, clock, told, kind, rest[0])
            continue
        payload, pause_ns, watched = rest
        clock.now += pause_ns
        clock.cpu += pause_ns // 2
        emit = recorder.emit if watched else recorder.emit_in_backward
        told.append((emit(kind, payload, "b", "c"), recorder.holds(kind), recorder.listens()))
    loop = recorder.loop
    return [
        told, [*recorder.chunks], recorder.take_rest(), recorder.calls, recorder.timed,
        recorder.timed_ns, recorder.next_timed, recorder.bare_hooks_ns, recorder.boundaries, recorder.marks,
        recorder.handed, recorder.losing, recorder._lost,
        recorder.failure, recorder.active, recorder.hook_ns, loop.idle, loop.gaps, loop.open_gap,
        loop.ordinal, loop.updates, loop.looks_left, loop.look_next, loop.looking,
        set(loop.blocked_at),
    ]  # fmt: skip


def alter(recorder: Any, clock: Clock, told: list[Any], what: str, value: int) -> None:
    """Somebody changes a setting, or takes what there is."""
    if what in HOOKS:
        setattr(recorder, what, hook(told, what, value) if value else None)
    elif what == "active":
        recorder.active = bool(value)
    elif what in ("gaps", "early"):
        setattr(recorder.loop, what, bool(value))
    elif what == "rounds":
        recorder.rounds = [None, *IterationStart][value % 3]
    elif what == "thread":
        recorder.thread = threading.get_ident() if value else 1
    elif what == "unstamped":
        recorder.unstamped = frozenset(list(Kind)[: 5 * value])
    elif what == "next_update":
        recorder.next_update = recorder.boundaries + value
    elif what == "taken":
        recorder.taken = recorder.handed - value
    elif what == "kernel":
        clock.tells = bool(value)
    else:
        told.append((recorder.recent(), recorder.take_rest()))


def hook(told: list[Any], what: str, value: int) -> Callable[..., bool]:
    def called(*args: Any) -> bool:
        told.append((what, *args))
        if value == 3:
            raise RuntimeError(what)
        return value == 2

    return called


@given(stories, st.sampled_from([3, 10, 1000]), st.integers(0, 200))
def test_the_two_cores_are_alike(story: list[list[tuple[Any, ...]]], chunk_events: int, fails_at: int) -> None:
    in_python, in_c = (tell(which, story, chunk_events, fails_at) for which in CORES)
    assert in_c == in_python


Batch = st.recursive(
    st.sampled_from(["tensor", "scalar", "nested", "subclass", "int", "text"]),
    lambda inner: st.tuples(st.sampled_from(["tuple", "list", "dict"]), st.lists(inner, max_size=4)),
    max_leaves=6,
)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@given(Batch, st.integers(0, 40), st.booleans())
def test_batches_are_counted_alike(plan: Any, rows: int, has_mode: bool) -> None:
    import torch
    from torch.overrides import TorchFunctionMode

    from ddlprof.torch_private.engine import function_modes

    class Own(torch.Tensor):
        pass

    leaves = {
        "tensor": torch.ones(rows, 2), "scalar": torch.tensor(1.0), "int": 3, "text": "word",
        "nested": torch.nested.nested_tensor([torch.ones(2)]), "subclass": torch.ones(rows).as_subclass(Own),
    }  # fmt: skip

    def made(plan: Any) -> Any:
        if isinstance(plan, str):
            return leaves[plan]
        kind, parts = plan
        values = [made(part) for part in parts] * (1 + rows // 20)
        return dict(enumerate(values)) if kind == "dict" else tuple(values) if kind == "tuple" else values

    batch = made(plan)
    for which in CORES:
        which.functions.set_tensor(torch.Tensor, function_modes(torch))
    mode = TorchFunctionMode()
    if has_mode:
        with mode:
            sizes = [which.functions.plain_size(batch) for which in CORES]
    else:
        sizes = [which.functions.plain_size(batch) for which in CORES]
    assert sizes[0] == sizes[1]


def test_the_time_of_the_core_in_c_is_that_of_the_host() -> None:
    import time

    recorder = CORES[-1].recorder()
    recorder.thread = threading.get_ident()
    before = time.perf_counter_ns()
    assert recorder.emit(Kind.EPOCH)
    assert before <= recorder.take_rest()[0][1] <= time.perf_counter_ns()


def test_what_is_no_exception_reaches_the_script() -> None:
    """Ctrl-C while a hook of ours runs is the script's."""

    def interrupted() -> None:
        raise KeyboardInterrupt

    for which in CORES:
        recorder = which.recorder(lambda: 0)
        recorder.thread = threading.get_ident()
        recorder.in_window = interrupted
        with pytest.raises(KeyboardInterrupt):
            recorder.emit(Kind.EPOCH)
        assert recorder.active
