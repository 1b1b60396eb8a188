"""Each collective is seen once, at the methods of groups or at the dispatcher, whoever issues it."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed import _functional_collectives as functional
from torch.nn.parallel import DistributedDataParallel

from ddlprof.collect.hooks import collectives, interception
from ddlprof.collect.hooks.interception import TorchCount
from ddlprof.collect.hooks.table import hook_context
from ddlprof.collect.recorder import Recorder
from ddlprof.model.events import Kind
from ddlprof.torch_private import collectives as private

pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")  # names that older versions have
CORE: Any = torch._C._distributed_c10d
DIST: Any = dist
METHODS = [name for name in private.METHODS if hasattr(CORE.ProcessGroup, name)]


@pytest.fixture(autouse=True)
def group() -> Iterator[Any]:
    dist.init_process_group("gloo", store=CORE.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> list[interception.Interception]:
    """The places of each installation."""
    made: list[interception.Interception] = []
    original = interception.Interception.__init__

    def keep(self: Any, *args: Any) -> None:
        original(self, *args)
        made.append(self)

    monkeypatch.setattr(interception.Interception, "__init__", keep)
    return made


@contextmanager
def hooked() -> Iterator[Recorder]:
    recorder = Recorder()
    before = {name: vars(CORE.ProcessGroup)[name] for name in METHODS}
    uninstall = collectives.install(hook_context(torch, recorder))
    try:
        yield recorder
    finally:
        uninstall()
        assert {name: vars(CORE.ProcessGroup)[name] for name in METHODS} == before


def seen(recorder: Recorder) -> list[tuple[Any, ...]]:
    found = [event[2] for event in recorder.recent() if event[0] == Kind.COLLECTIVE]
    assert all(each.end is not None and each.end >= each.ready for each in found)
    return [(each.op, each.group, each.seq, each.bytes, each.ranks, each.root) for each in found]


def waited(recorder: Recorder) -> list[Any]:
    return [event[3] for event in recorder.recent() if event[0] == Kind.COMM_END]


CALLS: dict[str, Callable[[torch.Tensor, torch.Tensor, bool], Any]] = {
    "allreduce": lambda x, y, later: dist.all_reduce(x, async_op=later),
    "broadcast": lambda x, y, later: dist.broadcast(x, 0, async_op=later),
    "allgather_base": lambda x, y, later: dist.all_gather_into_tensor(y, x, async_op=later),
    "reduce_scatter_base": lambda x, y, later: dist.reduce_scatter_tensor(y, x, async_op=later),
}


@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("op", CALLS)
def test_both_places_tell_the_same(op: str, later: bool, moved: bool, places: list[interception.Interception]) -> None:
    x, y = torch.arange(5.0), torch.zeros(5)
    with hooked() as recorder:
        if moved:
            places[0].move()
        for _ in range(2):
            work = CALLS[op](x, y, later)
            if later:
                work.wait()
        root = 0 if op == "broadcast" else None
        assert seen(recorder) == [(op, DIST.group.WORLD.group_name, number, 20, 1, root) for number in range(2)]
        assert [len(each) for each in waited(recorder)] == [1, 1]
    assert x.tolist() == [0, 1, 2, 3, 4]
    assert y.tolist() == ([0] * 5 if op in ("allreduce", "broadcast") else x.tolist())


FUNCTIONAL: dict[str, Callable[[torch.Tensor], Any]] = {
    "all_reduce": lambda x: functional.all_reduce(x, "sum", DIST.group.WORLD),
    "all_gather": lambda x: functional.all_gather_tensor(x, 0, DIST.group.WORLD),
    "reduce_scatter": lambda x: functional.reduce_scatter_tensor(x, "sum", 0, DIST.group.WORLD),
    "all_to_all": lambda x: functional.all_to_all_single(x, None, None, DIST.group.WORLD),
    "broadcast": lambda x: functional.broadcast(x, 0, DIST.group.WORLD),
}


@pytest.mark.parametrize("name", FUNCTIONAL)
def test_functional_ones_from_the_first(name: str) -> None:
    x = torch.arange(5.0)
    with hooked() as recorder:
        for _ in range(3):
            assert functional.wait_tensor(FUNCTIONAL[name](x)).tolist() == x.tolist()
            assert recorder.before_update is not None
            recorder.before_update()
        dist.all_reduce(x)
        found = seen(recorder)
    assert [(number, size) for _, _, number, size, _, _ in found] == [(number, 20) for number in range(4)]


def test_functional_gathers_leave_the_others_where_they_are(places: list[interception.Interception]) -> None:
    """FSDP2 gathers by the methods while tensor parallelism, or a checkpoint, gathers functionally."""
    with hooked():
        functional.wait_tensor(functional.all_gather_tensor(torch.ones(2), 0, DIST.group.WORLD))
        functional.wait_tensor(functional.reduce_scatter_tensor(torch.ones(2), "sum", 0, DIST.group.WORLD))
        assert set(places[0]._methods) == {form.operator for form in private.METHODS.values()}


@pytest.mark.parametrize("early", [True, False])
def test_those_of_ddps_reducer(early: bool) -> None:
    """Also where it was made before the hooks."""

    def make() -> Any:
        return DistributedDataParallel(torch.nn.Linear(3, 1))

    model = make() if early else None
    with hooked() as recorder:
        model = model or make()
        for _ in range(2):
            model(torch.ones(1, 3)).sum().backward()
            assert recorder.after_backward is not None
            recorder.after_backward()
            dist.all_reduce(torch.ones(1))
        reduced = [each for each in seen(recorder) if each[0] == "allreduce"]
    assert [each[3] for each in reduced] == [16, 4, 16, 4]
    assert reduced[-1][2] == len(seen(recorder)) - 1


OTHER_FORMS: dict[str, Callable[[Any, torch.Tensor], Any]] = {
    "a tensor": lambda group, x: group.allreduce(x),
    "without options": lambda group, x: group.allreduce([x]),
    "operation": lambda group, x: group.allreduce([x], dist.ReduceOp.MAX),
    "by name": lambda group, x: group.allreduce(tensors=[x], opts=CORE.AllreduceOptions()),
    "root": lambda group, x: group.broadcast(x, 0),
}


@pytest.mark.parametrize("form", OTHER_FORMS)
def test_other_forms_of_the_call_are_seen_at_the_dispatcher(form: str, group: Any) -> None:
    x = torch.ones(2)
    with hooked() as recorder:
        for _ in range(2):
            OTHER_FORMS[form](group, x).wait()
        assert [(each[2], each[3]) for each in seen(recorder)] == [(0, 8), (1, 8)]
    assert x.tolist() == [1, 1]


def test_what_the_method_refuses_is_refused(group: Any) -> None:
    with hooked() as recorder:
        wrongs: list[Any] = [(), (None,), ([], CORE.AllreduceOptions()), ("x", CORE.AllreduceOptions())]
        for wrong in wrongs:
            with pytest.raises((TypeError, RuntimeError, ValueError)):
                group.allreduce(*wrong)
        dist.all_reduce(torch.ones(1))
        assert recorder.active


def test_a_class_of_groups_of_the_scripts_own() -> None:
    """C++ calls its methods by their names, and takes what is no function in C for the script's own."""

    class Own(CORE.ProcessGroup):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(0, 1)
            self.gloo = DIST.group.WORLD._get_backend(torch.device("cpu"))
            self._register_backend(torch.device("cpu"), CORE.ProcessGroup.BackendType.GLOO, self.gloo)
            self._set_group_name("own")

    x = torch.ones(2)
    with hooked() as recorder:
        own: Any = Own()
        for _ in range(2):
            own.allreduce([x], CORE.AllreduceOptions()).wait()
        assert [each[:4] for each in seen(recorder)] == [("allreduce", "own", number, 8) for number in range(2)]


@pytest.mark.skipif(torch.__version__ < "2.11", reason="torch 2.6 has no collectives of fake tensors")
def test_tensors_without_data_are_not_communicated(group: Any) -> None:
    with hooked() as recorder:
        fake = FakeTensorMode().from_tensor(torch.ones(2))
        group.allreduce([fake], CORE.AllreduceOptions())
        assert [event for event in recorder.recent() if event[0] == Kind.COLLECTIVE] == []


def test_what_torch_counts_unseen_is_seen_from_then_on(
    group: Any, places: list[interception.Interception], monkeypatch: pytest.MonkeyPatch
) -> None:
    issue = CORE.ProcessGroup.allreduce  # as somebody's C++ may, past the methods
    with hooked() as recorder:
        compare = recorder.before_update
        assert compare is not None
        issue(group, [torch.ones(1)], CORE.AllreduceOptions()).wait()
        compare()
        assert [event[2] for event in recorder.recent() if event[0] == Kind.UNSEEN] == [1]
        issue(group, [torch.ones(1)], CORE.AllreduceOptions()).wait()
        compare()
        assert len(seen(recorder)) == 1
        assert len([event for event in recorder.recent() if event[0] == Kind.UNSEEN]) == 1


def test_groups_can_be_destroyed() -> None:
    with hooked():
        second: Any = dist.new_group([0])
        dist.all_reduce(torch.ones(1), group=second)
        gone = weakref.ref(second)
        dist.destroy_process_group(second)
        del second
        gc.collect()
        assert gone() is None


def test_the_classes_show_the_originals() -> None:
    before = {name: getattr(CORE.ProcessGroup, name) for name in METHODS}
    with hooked():
        assert {name: getattr(CORE.ProcessGroup, name) for name in METHODS} == before


def test_a_move_that_fails_leaves_the_operator_where_it_is(
    places: list[interception.Interception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(operator: str) -> Any:
        raise RuntimeError("no more")

    with hooked() as recorder:
        monkeypatch.setattr(places[0], "_at_dispatcher", breaks)
        places[0].move("allreduce_")
        dist.all_reduce(torch.ones(1))
        assert len(seen(recorder)) == 1


def test_a_method_that_the_script_has_kept_is_not_counted_beside_the_dispatcher(
    places: list[interception.Interception],
) -> None:
    with hooked() as recorder:
        kept = DIST.group.WORLD.allreduce
        for calls, moves in ((1, False), (2, True)):
            if moves:
                places[0].move("allreduce_")
            kept([torch.ones(1)], dist.AllreduceOptions()).wait()
            assert len(seen(recorder)) == calls


@dataclass(eq=False)
class Group:
    group_name: str
    count: int | None = 0

    def _get_sequence_number_for_group(self) -> int:
        if self.count is None:
            raise RuntimeError("this backend does not count")
        return self.count


def by_object(groups: list[Group]) -> dict[Group, str]:
    return {group: group.group_name for group in groups}


def test_only_what_nobody_saw_counts() -> None:
    seen = {"0": 7}
    group = Group("0", 12)
    count = TorchCount(seen.__getitem__, lambda: {group: "0"})
    assert count.unseen() == 0  # what was before
    group.count, seen["0"] = 15, 8  # a barrier that counts thrice
    assert count.unseen() == 0
    group.count = 17
    assert count.unseen() == 2
    assert count.unseen() == 0
    seen["0"] = 20  # messages, which NCCL does not count
    assert count.unseen() == 0


def test_each_group_for_itself() -> None:
    groups = [Group("0", None), Group("1")]
    count = TorchCount(lambda name: 0, lambda: by_object(groups))
    assert count.unseen() == 0
    groups.append(Group("2", 5))
    groups[1].count = 2
    assert count.unseen() == 2
    groups[:] = [Group("2", 1)]  # another one of that name
    assert count.unseen() == 0
    groups[0].count = 4
    assert count.unseen() == 3
