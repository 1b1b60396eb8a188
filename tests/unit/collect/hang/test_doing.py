"""What a training thread does, by its events; and which collectives a device has not passed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ddlprof.collect.hang.doing import Passed, doing, group_states, members
from ddlprof.collect.process.frames import StackFrame
from ddlprof.collect.seen_groups import LATEST, CollectiveCounter, SeenGroups
from ddlprof.model.dimensions import group_of
from ddlprof.model.events import Event, Kind


def events(*kinds: Kind, grad: Any = True) -> list[Event]:
    return [(kind, number, grad, None, None) for number, kind in enumerate(kinds)]


@pytest.mark.parametrize(
    ("kinds", "does"),
    [
        ((Kind.DATA_BEGIN,), "data"),
        ((Kind.DATA_BEGIN, Kind.DATA_END), "script"),
        ((Kind.FORWARD_BEGIN, Kind.FORWARD_END, Kind.BACKWARD_BEGIN, Kind.COMM_BEGIN), "collective"),
        ((Kind.COMM_BEGIN, Kind.COMM_END, Kind.COMM_BEGIN, Kind.COMM_END), "script"),
        ((Kind.CHECKPOINT_BEGIN,), "checkpoint"),
        ((Kind.CHECKPOINT_BEGIN, Kind.COMM_BEGIN), "collective"),
        ((Kind.CHECKPOINT_BEGIN, Kind.COMM_BEGIN, Kind.COMM_END), "checkpoint"),
        ((), "script"),
    ],
)
def test_the_innermost_that_is_open(kinds: tuple[Kind, ...], does: str) -> None:
    assert doing(events(*kinds), []) == does


def test_a_forward_without_gradients_is_an_evaluation() -> None:
    assert doing(events(Kind.FORWARD_BEGIN, grad=False), []) == "evaluation"
    assert doing(events(Kind.FORWARD_BEGIN), []) == "script"


def test_modules_on_the_stack() -> None:
    def inside(module: str) -> str:
        return doing([], [StackFrame(doing.__code__, 0, module)])

    assert inside("torch.distributed.distributed_c10d") == "collective"
    assert inside("torch._dynamo.symbolic_convert") == "compiling"
    assert inside("torch.nn.modules.module") == "script"


def collective(seq: int, end: int | None = None) -> Any:
    return SimpleNamespace(seq=seq, op="allreduce", bytes=8, root=None, issued=seq, end=end)


def test_what_a_device_has_not_passed() -> None:
    one, two, three = (collective(seq) for seq in range(3))
    issued = [(Kind.COLLECTIVE, None, each, None, None) for each in (one, two, three)]
    stamped = [(Kind.COMM_END, time, None, None, None) for time in range(4)]
    line = [stamped[0], issued[0], stamped[1], issued[1], stamped[2], issued[2], stamped[3]]
    for reached, left in ((0, {0, 1, 2}), (1, {1, 2}), (2, {2}), (3, set())):
        passed = Passed(line, lambda asked, reached=reached: all(event[1] <= reached for event in asked))  # type: ignore[misc]
        assert {each.seq for each in (one, two, three) if id(each) in passed.open} == left
        assert passed.all is (reached == 3)


def test_the_latest_of_each_group_in_their_order() -> None:
    seen, counter = SeenGroups(), CollectiveCounter()
    seen.counters["0"] = counter
    for seq in range(LATEST + 5):
        each = collective(seq, end=None if seq == LATEST + 4 else 1)
        counter.latest[seq % LATEST : seq % LATEST + 1] = [each]
        counter.noted += 1
    (state,) = group_states(seen, {"0": "data"}, 1000, None)
    assert [each.seq for each in state.recent] == list(range(5, LATEST + 5))
    assert [each.over for each in state.recent][-2:] == [True, False]
    assert (state.dimension, state.members) == ("data", [])


def test_channels() -> None:
    seen = SeenGroups()
    assert [members(name, seen) for name in ("0:1>2", "0:1>2#7", "0:any>2", "0")] == [[1, 2], [1, 2], [], []]
    assert [group_of(name) for name in ("0:1>2#7", "0", "a:b")] == ["0", "0", "a:b"]
