"""When the stack of the training thread is sampled, and for which step a sample counts."""

from __future__ import annotations

import contextlib
import io
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from ddlprof.collect.process import stacks
from ddlprof.collect.process.frames import StackFrame
from ddlprof.collect.process.moments import Where, compute_work, where
from ddlprof.collect.process.stacks import StackSampler
from ddlprof.collect.steps.no_grad import NoGradCalls
from ddlprof.model.events import Event, Kind, Purpose
from ddlprof.model.records import Flag
from ddlprof.model.source_locations import (
    BETWEEN,
    CHECKPOINT,
    EACH,
    EVALUATION,
    FORWARD,
    LOGGING,
    LOOP,
    OWN_LOOP,
    PARAMETRIZED,
    ROLLOUT,
    STEPPING,
    UPDATE,
    SourceLocation,
)
from tests.unit.collect.process.standing import standing


def event(kind: Kind, a: object = None) -> Event:
    return (kind, 0, a, None, None)


def frozen(purpose: Purpose) -> Event:
    """A forward begins that is for the same as those before it."""
    return (Kind.FORWARD_BEGIN, 0, False, True, lambda: NoGradCalls(purpose=purpose))


EVALUATED = [event(Kind.FORWARD_BEGIN, False), event(Kind.FORWARD_END)]
TRAINED = [event(Kind.FORWARD_BEGIN, True), event(Kind.FORWARD_END)]


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([], Where.OTHER),
        ([event(Kind.DATA_BEGIN)], Where.DATA),
        ([event(Kind.DATA_BEGIN), event(Kind.EPOCH)], Where.DATA),
        ([event(Kind.DATA_BEGIN), event(Kind.DATA_END)], Where.OTHER),
        (EVALUATED, Where.OTHER),
        (EVALUATED[:1], Where.OTHER),
        ([frozen(Purpose.ROLLOUT)], Where.OTHER),
        ([frozen(Purpose.TRAINING)], Where.ELSEWHERE),
        ([frozen(Purpose.TRAINING), event(Kind.FORWARD_END)], Where.OTHER),
        (TRAINED[:1], Where.ELSEWHERE),
        (TRAINED, Where.GAP),
        ([*TRAINED, event(Kind.DATA_BEGIN)], Where.DATA),
        ([*TRAINED, event(Kind.DATA_BEGIN), event(Kind.DATA_END)], Where.GAP),
        ([*TRAINED, *EVALUATED[:1]], Where.ELSEWHERE),
        ([*TRAINED, event(Kind.ITERATION), event(Kind.DATA_BEGIN), event(Kind.DATA_END)], Where.GAP),
        ([event(Kind.BACKWARD_BEGIN)], Where.ELSEWHERE),
        ([event(Kind.BACKWARD_BEGIN), event(Kind.BACKWARD_END)], Where.GAP),
        ([event(Kind.OPTIMIZER_BEGIN)], Where.ELSEWHERE),
        ([event(Kind.CHECKPOINT_BEGIN)], Where.OTHER),
        ([event(Kind.COMM_BEGIN)], Where.ELSEWHERE),
    ],
)
def test_what_a_moment_belongs_to(events: list[Event], expected: Where) -> None:
    assert where(events) is expected


def test_a_line_between_forward_and_update_counts_unless_torch_is_at_work(
    waiting: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler = StackSampler()
    sampler.sample(waiting, TRAINED, 1)
    monkeypatch.setattr(sampler.places, "in_torch", lambda stack: True)
    sampler.sample(waiting, TRAINED, 1)
    sampler.sample(waiting, [], 1)
    assert sum(sampler.of_step(2, 0).other.values()) == 2


@pytest.mark.parametrize(("trains", "number"), [(True, 1), (False, 0)])
def test_a_thread_that_waits_for_the_training_is_not_what_starts_slowly(
    waiting: int, trains: bool, number: int
) -> None:
    sampler = StackSampler()
    sampler.sample_start(waiting, [], 1)
    assert sum(sampler.of_step(2, 0, waiting if trains else waiting + 1).other.values()) == number
    sampler.sample(waiting, [], 2)  # of later steps all looks count
    assert sum(sampler.of_step(3, 0, waiting + 1).other.values()) == 1


@pytest.mark.parametrize(("what", "number"), [("start-up waits", 1), ("start-up", 0)])
def test_a_wait_in_a_collective_is_sampled_before_the_first_step(
    waiting: int, monkeypatch: pytest.MonkeyPatch, what: str, number: int
) -> None:
    monkeypatch.setattr(stacks, "start_place", lambda places, stack: SourceLocation("train.py:3 first", what))
    sampler = StackSampler()
    sampler.sample_start(waiting, [(Kind.COMM_BEGIN, 1, False, 1, None)], 1)
    assert sum(sampler.of_step(2, 0, waiting).other.values()) == number


@pytest.fixture
def waiting() -> Iterator[int]:
    """A thread that waits in the standard library, called from this file."""
    release, begun = threading.Event(), threading.Event()

    def outer() -> None:
        begun.set()
        release.wait()

    with standing(outer, begun, release) as thread:
        yield thread


def test_the_innermost_line_of_the_users(waiting: int) -> None:
    sampler = StackSampler()
    for _ in range(3):
        sampler.sample(waiting, [], 1)
    sampler.sample(waiting, [event(Kind.BACKWARD_BEGIN)], 1)
    ((place, count),) = sampler.of_step(2, 0).other.items()
    assert count == 3
    file, rest = place.text.rsplit(":", 1)
    assert file == str(Path(__file__).relative_to(Path.cwd()))
    assert rest.endswith("outer")

    # What was sampled after the last update is of no step, and never asked for.


@pytest.mark.parametrize(
    ("events", "flags", "what"),
    [
        ([event(Kind.FORWARD_BEGIN, False)], 0, FORWARD),
        ([event(Kind.FORWARD_BEGIN, False)], Flag.EVALUATION, EVALUATION),
        ([frozen(Purpose.EVALUATION)], 0, EVALUATION),
        ([frozen(Purpose.ROLLOUT)], Flag.EVALUATION, ROLLOUT),
        ([event(Kind.FORWARD_BEGIN, False), event(Kind.FORWARD_END)], Flag.EVALUATION, ""),
        ([event(Kind.CHECKPOINT_BEGIN)], 0, CHECKPOINT),
        ([event(Kind.CHECKPOINT_BEGIN), event(Kind.CHECKPOINT_END)], 0, ""),
        ([event(Kind.EPOCH), event(Kind.DATA_END)], 0, ""),
    ],
)
def test_what_the_hooks_know_of_a_line(waiting: int, events: list[Event], flags: int, what: str) -> None:
    sampler = StackSampler()
    sampler.sample(waiting, events, 1)
    ((place, _),) = sampler.of_step(2, flags).other.items()
    assert place.what == what


def test_what_ddlprof_does_for_itself_is_no_line_of_the_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads a file after each forward, where many looks would fall."""
    ours = StackFrame((lambda: None).__code__, 0, "ddlprof.collect.steps.loop")
    wrapper = ours._replace(module="ddlprof.collect.hooks.host_reads")  # what it calls is the script's
    user = StackFrame(compile("x = 1", __file__, "exec"), 0, "__main__")
    for inner, number in ((ours, 0), (wrapper, 1)):
        stack = [inner, user]
        monkeypatch.setattr("ddlprof.collect.process.stacks.stack_of_thread", lambda _, stack=stack: stack)
        sampler = StackSampler()
        sampler.sample(1, [event(Kind.FORWARD_BEGIN), event(Kind.FORWARD_END)], 1)
        assert len(sampler.of_step(2, 0).other) == number


def test_what_is_on_its_way_into_a_forward_is_no_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    call = StackFrame(torch.nn.Module._call_impl.__code__, 0, "torch.nn.modules.module")
    inner = StackFrame(torch.nn.Linear.forward.__code__, 0, "torch.nn.modules.linear")
    user = StackFrame(compile("x = 1", __file__, "exec"), 0, "__main__")
    for stack, words in (([call, call, user], []), ([inner, call, call, user], [FORWARD])):
        monkeypatch.setattr("ddlprof.collect.process.stacks.stack_of_thread", lambda _, stack=stack: stack)
        sampler = StackSampler()
        sampler.sample(1, [], 1)
        assert [place.what for place in sampler.of_step(2, 0).other] == words


def test_a_thread_that_is_gone() -> None:
    sampler = StackSampler()
    sampler.sample(None, [], 0)
    sampler.sample(-5, [], 0)
    assert sampler.of_step(1, 0).other == {}


def test_only_the_most_frequent_lines_are_kept(monkeypatch: pytest.MonkeyPatch, waiting: int) -> None:
    sampler = StackSampler()
    places = [SourceLocation(f"line {n}") for n in range(40) for _ in range(n)]
    monkeypatch.setattr(sampler.places, "find", lambda inside: places.pop())
    for _ in list(places):
        sampler.sample(waiting, [], 1)
    assert sampler.of_step(2, 0).other == {SourceLocation(f"line {n}"): n for n in range(39, 19, -1)}


def test_the_stack_of_an_update_is_that_of_who_tells_of_it() -> None:
    sampler = StackSampler()
    sampler.at_update()
    assert sampler._new_update[-1][0] is sys._getframe().f_code


LOSS = [event(Kind.FORWARD_BEGIN, True), event(Kind.FORWARD_END, True)]


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([], None),
        (LOSS[:1], LOOP),
        (LOSS, LOOP),
        ([*LOSS, event(Kind.DATA_BEGIN)], None),
        ([*LOSS, event(Kind.BACKWARD_BEGIN)], None),
        ([*LOSS, event(Kind.BACKWARD_BEGIN), event(Kind.BACKWARD_END)], BETWEEN),
        ([event(Kind.OPTIMIZER_BEGIN)], UPDATE),
        (EVALUATED[:1], None),
    ],
)
def test_what_is_sampled_of_computing(events: list[Event], expected: str | None) -> None:
    assert compute_work(events) == expected


def test_a_package_that_logs_is_told_before_a_loop_in_forwards_alone() -> None:
    logger, handler, sampler = logging.Logger("hooks"), logging.StreamHandler(io.StringIO()), StackSampler()
    logger.addHandler(handler)

    def forward() -> None:
        for _ in range(1):
            logger.info("norm")

    thread = threading.Thread(target=forward)
    assert handler.lock is not None
    with handler.lock:
        thread.start()
        found: dict[SourceLocation, int] = {}
        deadline = time.monotonic() + 60
        while not any(place.what == LOGGING for place in found) and time.monotonic() < deadline:
            sampler.sample(thread.ident, LOSS[:1], 1)
            found = sampler.of_step(2, 0).compute
        sampler.sample(thread.ident, [event(Kind.BACKWARD_END)], 1)
        after = sampler.of_step(2, 0).compute
    thread.join()
    (place,) = found
    assert "logging" in place.text
    assert place.caller.endswith("forward")
    assert [(each.what, each.text.rpartition(".")[2]) for each in after] == [(BETWEEN, "forward")]


class Layer(torch.nn.Module):
    def __init__(self, wait: Callable[[], object]) -> None:
        super().__init__()
        self.wait = wait

    def forward(self) -> None:
        self.wait()


class Stateful(Layer):
    def forward(self) -> None:
        self.state = self.wait()


@pytest.mark.parametrize(
    ("kind", "calls_module", "word"),
    [(Layer, False, OWN_LOOP), (Layer, True, EACH), (Stateful, True, LOOP)],
)
def test_a_loop_of_the_script_is_told_in_forwards_and_in_optimizers(
    kind: type[Layer], calls_module: bool, word: str
) -> None:
    release, begun = threading.Event(), threading.Event()
    layer = kind(lambda: begun.set() or release.wait())  # type: ignore[func-returns-value]
    call = layer if calls_module else layer.forward

    def many() -> None:
        for _ in range(1):
            call()

    sampler = StackSampler()
    with standing(many, begun, release) as thread:
        sampler.sample(thread, LOSS[:1], 1)
        sampler.sample(thread, [event(Kind.OPTIMIZER_BEGIN)], 1)
        sampler.sample(thread, [event(Kind.BACKWARD_END)], 1)
        sampler.sample(thread, [event(Kind.BACKWARD_BEGIN)], 1)
    found = sampler.of_step(2, 0)
    assert [place.what for place in found.compute] == [word, UPDATE, BETWEEN]
    line = many.__code__.co_firstlineno + 1
    assert all(place.text.partition(" ")[0].endswith(f":{line}") for place in found.compute)
    assert sum(found.other.values()) == 1  # what follows a backward may be `other`


@pytest.mark.parametrize(
    ("before", "word"),
    [
        ([], OWN_LOOP),
        ([frozen(Purpose.TRAINING), event(Kind.FORWARD_END)], OWN_LOOP),
        (EVALUATED, ""),  # it may be a loop over the batches of an evaluation
    ],
)
@pytest.mark.parametrize("form", ["many", "total", "other"])
def test_a_loop_of_the_script_is_told_outside_of_computing(before: list[Event], word: str, form: str) -> None:
    release, begun = threading.Event(), threading.Event()

    def one() -> bool:
        begun.set()
        return release.wait()

    def many() -> None:
        assert [one() for _ in range(1)]

    def total() -> None:
        assert sum(one() for _ in range(1))

    def other() -> None:
        for _ in range(1):
            begun.set()
            release.wait()

    function = {"many": many, "total": total, "other": other}[form]
    sampler = StackSampler()
    with standing(function, begun, release) as thread:
        sampler.sample(thread, before, 1)
    (place,) = sampler.of_step(2, 0).other
    assert place.what == word
    if word:
        assert place.text.partition(" ")[0].endswith(f":{function.__code__.co_firstlineno + 1}")


def test_a_generator_that_is_asked_for_each_batch_is_no_loop() -> None:
    release, begun = threading.Event(), threading.Event()

    def made() -> bool:
        begun.set()
        return release.wait()

    def many() -> None:
        for batch in (made() for _ in range(1)):
            assert batch

    sampler = StackSampler()
    with standing(many, begun, release) as thread:
        sampler.sample(thread, [], 1)
    (place,) = sampler.of_step(2, 0).other
    assert place.what == ""


def test_a_loop_of_the_script_that_only_calls_others_is_not_told() -> None:
    release, begun = threading.Event(), threading.Event()

    def called_back() -> None:
        begun.set()
        release.wait()

    def call_back() -> None:
        for _ in range(1):
            called_back()

    sampler = StackSampler()
    with standing(call_back, begun, release) as thread:
        sampler.sample(thread, [], 1)
    (place,) = sampler.of_step(2, 0).other
    assert place.what == ""
    assert place.text.endswith("called_back")


@pytest.mark.parametrize(
    ("looped", "cached", "word"), [(True, False, PARAMETRIZED), (False, False, ""), (True, True, EACH)]
)
def test_weights_that_are_computed_in_a_loop_are_told(looped: bool, cached: bool, word: str) -> None:
    release, begun = threading.Event(), threading.Event()

    class Waits(torch.nn.Module):
        def forward(self, weight: torch.Tensor) -> torch.Tensor:
            if threading.current_thread() is not threading.main_thread():
                begun.set()
                release.wait()
            return weight

    layer = torch.nn.Linear(2, 2)
    torch.nn.utils.parametrize.register_parametrization(layer, "weight", Waits())

    def many() -> None:
        with torch.nn.utils.parametrize.cached() if cached else contextlib.nullcontext():
            for _ in range(1):
                assert layer.weight is not None

    def one() -> None:
        assert layer.weight is not None

    sampler = StackSampler()
    with standing(many if looped else one, begun, release) as thread:
        sampler.sample(thread, LOSS[:1], 1)
    (place,) = sampler.of_step(2, 0).compute
    assert place.what == word
    assert place.text.endswith("many" if looped else "forward")


def test_a_line_without_a_loop_counts_as_such(waiting: int) -> None:
    sampler = StackSampler()
    for _ in range(3):
        sampler.sample(waiting, LOSS[:1], 1)
        sampler.sample(waiting, [event(Kind.OPTIMIZER_BEGIN)], 1)
    found = sampler.of_step(2, 0).compute
    assert {place.what: count for place, count in found.items()} == {"": 3, STEPPING: 3}
