from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlprof.collect.process.clocks import ThreadClock
from ddlprof.collect.steps import loop
from ddlprof.collect.steps.loop import Gap, OperatorLog, RecorderLoop
from ddlprof.model.events import IterationStart, Kind
from tests.unit.collect.cores import CORES, Core, PythonLoopWatch, PythonRecorder

BATCH = (Kind.DATA_BEGIN, Kind.DATA_END)
FORWARD = (Kind.FORWARD_BEGIN, Kind.FORWARD_END)
BACKWARD = (Kind.BACKWARD_BEGIN, Kind.BACKWARD_END)
ZERO_GRAD = (Kind.ZERO_GRAD_BEGIN, Kind.ZERO_GRAD_END)
UPDATE = (Kind.OPTIMIZER_BEGIN, Kind.OPTIMIZER_END)


class Clock(ThreadClock):
    """Of a thread that computes all the time."""

    def __init__(self) -> None:
        self.now = 0
        self.cpu_ns = lambda: self.now
        self.waiting = lambda: b"0 0 0"


class Log(OperatorLog):
    def __init__(self) -> None:
        self.started = self.stopped = 0

    def start(self) -> bool:
        self.started += 1
        return True

    def stop(self, recorded: bool = False) -> Any:
        self.stopped += 1
        return [(0, 1)]


class Script:
    """Says what the hooks do; `extras` is what the watch adds."""

    def __init__(self, core: Core) -> None:
        self.clock = Clock()
        self.watch: RecorderLoop = core.loop(lambda: self.clock, lambda: self.clock.now)
        self.watch.log = self.log = Log()
        self.extras: list[tuple[int, Any]] = []

    def does(self, *kinds: Sequence[Kind], grad: bool = True, pause: int = 0) -> None:
        for pair in kinds:
            for kind in pair:
                if kind == pair[0]:
                    self.extras += self.watch.before(kind, grad)
                else:
                    self.watch.after(kind)
                self.clock.now += pause if kind == pair[1] else 1_000_000

    @property
    def kinds(self) -> list[Kind]:
        return [Kind(kind) for kind, _ in self.extras]

    @property
    def gaps(self) -> list[Gap]:
        return [gap for kind, gap in self.extras if kind == Kind.GAP]


@pytest.fixture(params=CORES, ids=lambda core: core.name)
def core(request: pytest.FixtureRequest) -> Core:
    found: Core = request.param
    return found


@pytest.fixture
def script(core: Core) -> Script:
    return Script(core)


def test_an_ordinary_step_without_pauses_adds_nothing(script: Script) -> None:
    for _ in range(3):
        script.does(BATCH, FORWARD, BACKWARD, UPDATE)
    assert script.extras == []


def test_pauses_between_forward_and_update_are_gaps(script: Script) -> None:
    script.does(BATCH, FORWARD, BACKWARD, UPDATE, pause=300_000)
    assert [gap.place for gap in script.gaps] == [
        (Kind.FORWARD_END, Kind.BACKWARD_BEGIN, 1),
        (Kind.BACKWARD_END, Kind.OPTIMIZER_BEGIN, 2),
    ]
    assert [gap.wall_ns for gap in script.gaps] == [300_000, 300_000]


def test_a_batch_made_after_the_forward_has_gaps_around_it(script: Script) -> None:
    script.does(FORWARD, BATCH, BACKWARD, UPDATE, pause=300_000)
    assert [gap.place[:2] for gap in script.gaps] == [
        (Kind.FORWARD_END, Kind.DATA_BEGIN),
        (Kind.DATA_END, Kind.BACKWARD_BEGIN),
        (Kind.BACKWARD_END, Kind.OPTIMIZER_BEGIN),
    ]


def test_zeroing_gradients_interrupts_a_gap_and_looks_like_no_other_event(script: Script) -> None:
    script.does(BATCH, FORWARD, ZERO_GRAD, BACKWARD, UPDATE, ZERO_GRAD, pause=300_000)
    assert [gap.place for gap in script.gaps] == [
        (Kind.FORWARD_END, Kind.ZERO_GRAD_BEGIN, 1),
        (Kind.FORWARD_END, Kind.BACKWARD_BEGIN, 2),
        (Kind.BACKWARD_END, Kind.OPTIMIZER_BEGIN, 3),
    ]
    assert {gap.wall_ns for gap in script.gaps} == {300_000}


def test_zeroing_gradients_outside_of_a_step_opens_no_gap(script: Script) -> None:
    script.does(ZERO_GRAD, BATCH, ZERO_GRAD, pause=300_000)
    script.does(FORWARD, BACKWARD, UPDATE)
    assert script.extras == []


def test_evaluation_has_no_gaps(script: Script) -> None:
    script.does(BATCH, FORWARD, BATCH, FORWARD, grad=False, pause=300_000)
    assert script.extras == []


def test_gaps_in_which_the_thread_computes_are_looked_into_for_some_updates(script: Script) -> None:
    for _ in range(10):
        script.does(FORWARD, BACKWARD, UPDATE, pause=300_000)
    looked = [gap.operators is not None for gap in script.gaps]
    assert looked == [False] + [True] * (2 * loop.LOOK_UPDATES - 1) + [False] * (20 - 2 * loop.LOOK_UPDATES)
    assert script.log.started == script.log.stopped == sum(looked)
    assert script.kinds.count(Kind.TRACED) == sum(looked)


def test_a_look_ends_when_the_script_uses_a_profiler_of_its_own(script: Script) -> None:
    script.does(FORWARD, BACKWARD, UPDATE, FORWARD, pause=300_000)
    assert script.log.started > script.log.stopped
    script.watch.close_log()
    assert script.log.started == script.log.stopped
    script.does(BACKWARD)
    assert script.log.started >= script.log.stopped
    assert script.gaps[-1].operators is None


def test_no_gaps_on_a_devices_timeline(script: Script) -> None:
    script.watch.gaps = False
    script.does(FORWARD, BACKWARD, UPDATE, pause=300_000)
    assert script.extras == []


def test_where_the_kernel_does_not_tell_there_are_no_gaps(core: Core) -> None:
    def fail() -> ThreadClock:
        raise OSError

    watch = core.loop(fail, lambda: 0)
    watch.before(Kind.FORWARD_BEGIN, True)
    watch.after(Kind.FORWARD_END)
    assert not watch.gaps
    assert watch.before(Kind.BACKWARD_BEGIN, None) == []


def test_rounds_without_an_update(script: Script) -> None:
    for _ in range(3):
        script.does(BATCH, FORWARD, BACKWARD)
    script.does(BATCH)
    assert script.extras == [(Kind.ITERATION, IterationStart.LOADER)] * 3


def test_rounds_without_a_loader(script: Script) -> None:
    for _ in range(3):
        script.does(FORWARD, BACKWARD)
    assert script.extras == [(Kind.ITERATION, IterationStart.FORWARD)] * 2


def test_no_round_after_an_update(script: Script) -> None:
    script.does(BATCH, FORWARD, BACKWARD, UPDATE, BATCH, FORWARD)
    assert script.extras == []


def test_an_evaluation_after_a_backward_is_no_round(script: Script) -> None:
    script.does(FORWARD, BACKWARD)
    script.does(FORWARD, FORWARD, grad=False)
    assert script.extras == []


def test_no_gap_inside_a_whole_step_that_is_compiled(script: Script) -> None:
    for _ in range(2):
        script.does(BATCH)
        script.watch.before(Kind.FORWARD_BEGIN, True)
        script.does(BACKWARD, pause=2_000_000)  # the update, which no hook sees
        script.does(ZERO_GRAD)
        script.watch.after(Kind.FORWARD_END)
        script.does(UPDATE)
    assert script.extras == []
    script.does(BATCH, FORWARD, pause=2_000_000)
    script.does(BACKWARD)
    assert len(script.extras) == 1


def test_no_gap_inside_a_backward(script: Script) -> None:
    """Activation checkpointing computes forwards again there."""
    script.does(FORWARD)
    script.extras += script.watch.before(Kind.BACKWARD_BEGIN, None)
    for _ in range(3):
        script.does(FORWARD, pause=300_000)
    assert script.gaps == []
    script.watch.after(Kind.BACKWARD_END)
    script.clock.now += 300_000
    script.extras += script.watch.before(Kind.OPTIMIZER_BEGIN, None)
    assert len(script.gaps) == 1


def test_a_pause_between_the_updates_of_two_optimizers_is_a_gap(script: Script) -> None:
    for optimizer in (0, 1, 0):
        script.does(FORWARD, BACKWARD)
        script.extras += script.watch.before(Kind.OPTIMIZER_BEGIN, optimizer)
        script.watch.after(Kind.OPTIMIZER_END, optimizer)
        script.clock.now += 300_000
    assert [gap.place[:2] for gap in script.gaps] == [(Kind.OPTIMIZER_END, Kind.FORWARD_BEGIN)]


def test_what_a_loss_is_computed_from_before_any_forward_is_in_gaps(script: Script) -> None:
    script.watch.early = True
    script.watch.after(Kind.OPTIMIZER_END, 0)
    script.clock.now += 300_000
    script.does(ZERO_GRAD, BACKWARD, pause=300_000)
    assert [gap.place for gap in script.gaps] == [
        (Kind.OPTIMIZER_END, Kind.ZERO_GRAD_BEGIN, 1),
        (Kind.OPTIMIZER_END, Kind.BACKWARD_BEGIN, 2),
    ]


def test_what_a_loss_is_computed_from_follows_the_batch(script: Script) -> None:
    script.watch.early = True
    script.watch.after(Kind.OPTIMIZER_END, 0)
    script.does(BATCH, FORWARD, pause=300_000)
    assert [gap.place[:2] for gap in script.gaps] == [(Kind.DATA_END, Kind.FORWARD_BEGIN)]
    script.does(BACKWARD, pause=300_000)
    assert [gap.place[:2] for gap in script.gaps[1:]] == [(Kind.FORWARD_END, Kind.BACKWARD_BEGIN)]


def test_what_follows_a_forward_without_gradients_is_no_gap_before_a_step(script: Script) -> None:
    script.watch.early = True
    script.watch.after(Kind.OPTIMIZER_END, 0)
    for _ in range(3):
        script.does(FORWARD, grad=False, pause=300_000)
    assert script.gaps == []


@pytest.mark.parametrize(("pause", "looked"), [(loop.HUGE_GAP_NS, True), (loop.HUGE_EARLY_GAP_NS, False)])
def test_a_whole_forward_is_looked_into_where_it_is_in_a_gap(pause: int, looked: bool, script: Script) -> None:
    script.watch.early = True
    for _ in range(5):
        script.does(BACKWARD)
        script.extras += script.watch.before(Kind.OPTIMIZER_BEGIN, 0)
        script.watch.after(Kind.OPTIMIZER_END, 0)
        script.clock.now += pause
    assert bool(script.log.started) == looked


def test_gaps_that_would_fill_the_memory_are_not_looked_into(script: Script) -> None:
    for _ in range(5):
        script.does(FORWARD, BACKWARD, UPDATE, pause=loop.HUGE_GAP_NS)
    assert script.log.started == 0


class NeverIdle(PythonLoopWatch):
    """Is told of every event."""

    idle = property(lambda self: False, lambda self, value: None)


EVENTS = [*BATCH, *FORWARD, *BACKWARD, *ZERO_GRAD, *UPDATE, Kind.H2D_BEGIN, Kind.H2D_END]
PAUSES_NS = (1_000, 100_000, 300_000, 60_000_000)


@given(
    st.lists(
        st.tuples(st.sampled_from(EVENTS), st.sampled_from([None, True, False, 0, 1]), st.sampled_from(PAUSES_NS)),
        max_size=80,
    ),
    st.sampled_from([None, *IterationStart]),
)
def test_what_is_not_told_while_it_is_idle_changes_nothing(
    script: list[tuple[Kind, Any, int]], rounds: IterationStart | None
) -> None:
    assert recorded(script, rounds, PythonLoopWatch) == recorded(script, rounds, NeverIdle)


def recorded(
    script: list[tuple[Kind, Any, int]], rounds: IterationStart | None, kind_of_watch: type[PythonLoopWatch]
) -> tuple[list[Any], list[int]]:
    """The events, and the numbers of the steps that ended."""
    clock = Clock()
    told: list[int] = []
    recorder = PythonRecorder(lambda: clock.now)
    recorder.loop = kind_of_watch(lambda: clock, lambda: clock.now)
    recorder.loop.log, recorder.rounds, recorder.at_update = Log(), rounds, told.append
    for kind, payload, pause_ns in script:
        clock.now += pause_ns
        assert recorder.emit(kind, payload)
    return [*recorder.chunks, recorder.recent()], told


class Sleepy(Clock):
    """Of a thread that was blocked, or without a processor."""

    def __init__(self) -> None:
        super().__init__()
        self.cpu = self.delay = self.reads = 0
        self.cpu_ns = lambda: self.cpu
        self.waiting = self.read

    def read(self) -> bytes:
        self.reads += 1
        return f"0 {self.delay} 0".encode()

    def pause(self, cpu: int = 0, delay: int = 0, blocked: int = 0) -> None:
        self.cpu += cpu
        self.delay += delay
        self.now += cpu + delay + blocked


def gap_after(watch: Any, clock: Sleepy, **pause: int) -> int:
    """Reads of the kernel's figures in a step with such a pause between forward and backward."""
    before = clock.reads
    watch.before(Kind.FORWARD_BEGIN, True)
    watch.after(Kind.FORWARD_END)
    clock.pause(**pause)
    watch.before(Kind.BACKWARD_BEGIN, None)
    watch.after(Kind.BACKWARD_END)
    watch.before(Kind.OPTIMIZER_BEGIN, 0)
    watch.after(Kind.OPTIMIZER_END, 0)
    return clock.reads - before


def test_a_gap_is_read_for_a_while_after_the_thread_had_no_processor(core: Core) -> None:
    clock = Sleepy()
    watch = core.loop(lambda: clock, lambda: clock.now)
    assert gap_after(watch, clock, cpu=400_000) == 0
    assert gap_after(watch, clock, cpu=400_000, delay=400_000) == 0
    reads = [gap_after(watch, clock, cpu=400_000) for _ in range(20)]
    assert reads == [2] * 16 + [0] * 4
    assert gap_after(watch, clock, delay=400_000) == 0
    short = [gap_after(watch, clock, cpu=100_000) for _ in range(40)]
    assert short == [1] * 32 + [0] * 8


def test_a_gap_is_read_for_good_once_the_thread_was_blocked_in_it(core: Core) -> None:
    clock = Sleepy()
    watch = core.loop(lambda: clock, lambda: clock.now)
    for every in (50, 50, 50, 50, 50):
        gap_after(watch, clock, blocked=1_000_000)
        for _ in range(every - 1):
            gap_after(watch, clock, cpu=400_000)
    assert [gap_after(watch, clock, cpu=400_000) for _ in range(200)] == [2] * 200
