"""The user's modules: timed where they are outermost, and otherwise as they were."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from ddlprof.model.records import Flag
from tests.integration.hooks.conftest import Profile, Profiling


def train(net: nn.Module, steps: int = 6, optimizer: Any = None) -> None:
    optimizer = optimizer or torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        net(torch.ones(3, 4)).sum().backward()
        optimizer.step()


def outermost(profile: Profile) -> list[Any]:
    """The modules that were found."""
    assert profile.session.context is not None
    return list(profile.session.context.modules.seen)


def small_net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def test_only_the_outermost_module_is_touched(profiling: Profiling) -> None:
    with profiling() as profile:
        net, criterion = small_net(), nn.MSELoss()
        keys = list(net.state_dict())
        attributes = [set(vars(module)) for module in net.modules()]
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(6):
            criterion(net(torch.ones(3, 4)), torch.zeros(3, 2)).backward()
            optimizer.step()
        assert outermost(profile) == [net]
        assert list(net.state_dict()) == keys
        now = [set(vars(module)) for module in net.modules()]
        assert now[1:] == attributes[1:]
        assert now[0] - attributes[0] == {"_compiled_call_impl"}
    assert [set(vars(module)) for module in net.modules()] == attributes
    assert [row.samples for row in profile.rows] == [3] * 6


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
def test_copies_know_nothing_of_us(copied: Any, profiling: Profiling) -> None:
    with profiling() as profile:
        net = small_net()
        train(net, 1)
        other = copied(net)
        assert "_compiled_call_impl" not in vars(other)
        train(net)
        train(other)
        nested = copy.deepcopy({"nets": [net]})
        assert "_compiled_call_impl" not in vars(nested["nets"][0])
    assert len(profile.rows) >= 7


@pytest.mark.slow
def test_saved_models_load_where_there_is_no_ddlprof(profiling: Profiling, tmp_path: Path) -> None:
    with profiling() as profile:
        net = small_net()
        train(net, 5)
        torch.save(net, tmp_path / "net.pt")
        torch.save({"net": net.state_dict()}, tmp_path / "state.pt")
        train(net, 1)
    assert b"ddlprof" not in (tmp_path / "net.pt").read_bytes()
    assert [bool(row.flags & Flag.CHECKPOINT) for row in profile.rows] == [False] * 5 + [True]
    code = (
        "import sys, torch\nsys.modules['ddlprof'] = None\n"
        "net = torch.load('net.pt', weights_only=False)\nnet(torch.ones(3, 4))\ntorch.load('state.pt')"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)


def test_a_model_is_freed_when_the_script_drops_it(profiling: Profiling) -> None:
    with profiling():
        net = small_net()
        train(net)
        gone = weakref.ref(net)
        del net
        gc.collect()
        # The facts of the manifest are learned from the model of the first steps; a later one is not kept.
        second = small_net()
        second(torch.ones(3, 4))
        second_gone = weakref.ref(second)
        del second
        gc.collect()
        assert second_gone() is None
    gc.collect()
    assert gone() is None


def test_a_second_model_is_found(profiling: Profiling) -> None:
    with profiling() as profile:
        train(small_net(), 6)
        other = small_net()
        optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
        deadline = 400
        while other not in outermost(profile) and deadline:
            train(other, 1, optimizer)
            deadline -= 1
            profile.session.helper._stop.wait(0.01)
        assert deadline


def test_evaluation_under_no_grad(profiling: Profiling) -> None:
    with profiling() as profile:
        net = small_net()
        train(net, 2)
        net.eval()
        with torch.no_grad():
            net(torch.ones(3, 4))
        net.train()
        train(net, 2)
    assert [bool(row.flags & Flag.EVALUATION) for row in profile.rows] == [False, False, True, False]


class Shared(nn.Module):
    """Copies itself by its attributes, as libraries do that share everything but a part."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: Any) -> Any:
        return self.layer(x)

    def twin(self) -> Any:
        twin = Shared.__new__(Shared)
        twin.__dict__ = {**self.__dict__, "_modules": {"layer": nn.Linear(4, 2)}}
        return twin


@pytest.mark.parametrize("steps", [1, 6])
def test_a_copy_of_the_attributes_calls_itself(steps: int, profiling: Profiling) -> None:
    with profiling() as profile:
        net, x = Shared(), torch.ones(3, 4)
        train(net, steps)
        twin = net.twin()
        assert torch.equal(twin(x), twin.layer(x))
        last = twin.twin()
        del net, twin
        gc.collect()
        assert torch.equal(last(x), last.layer(x))
    assert len(profile.rows) == steps


@pytest.mark.parametrize("answer", [list, lambda found: 1 / 0], ids=["list", "error"])
def test_the_script_is_not_asked_for_its_parameters(answer: Any, profiling: Profiling) -> None:
    class Asked(Shared):
        def parameters(self, recurse: bool = True) -> Any:
            return answer(super().parameters(recurse))

    with profiling() as profile:
        net = Asked()
        train(net, optimizer=torch.optim.SGD(net.layer.parameters(), lr=0.1))
    assert [row.samples for row in profile.rows] == [3] * 6


def test_tensor_classes_of_the_script_are_asked_by_nobody_else(profiling: Profiling) -> None:
    class Counted(torch.Tensor):
        calls = 0

        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            Counted.calls += 1
            return super().__torch_function__(func, types, args, kwargs or {})

    def run() -> int:
        Counted.calls = 0
        net: Any = small_net()
        net[0].weight = nn.Parameter(torch.ones(8, 4).as_subclass(Counted))
        train(net)
        return Counted.calls

    plain = run()
    with profiling():
        profiled = run()
    assert profiled == plain


@pytest.mark.usefixtures("dynamo_forgets")
def test_export_and_transforms(profiling: Profiling) -> None:
    with profiling():
        net, x = Shared(), torch.ones(3, 4)
        for _ in range(2):  # while modules are looked for, and afterwards
            train(net)
            assert torch.equal(torch.export.export(net, (x,)).module()(x), net(x))
            assert torch.equal(torch.func.functional_call(net, dict(net.named_parameters()), x), net(x))
            gradients = torch.func.vmap(torch.func.grad(lambda row: net(row).sum()))(x)
            assert gradients.shape == (3, 4)


def test_samples_under_vmap_are_not_known(profiling: Profiling) -> None:
    def loss(weights: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(net, weights, (x[None],)).sum()  # type: ignore[no-any-return]

    net = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with profiling() as profile:
        for _ in range(20):  # also after those that are looked at
            weights = {name: each.detach() for name, each in net.named_parameters()}
            found = torch.func.vmap(torch.func.grad(loss), (None, 0))(weights, torch.ones(3, 4))
            for name, each in net.named_parameters():
                each.grad = found[name].mean(0)
            optimizer.step()
    assert len(profile.rows) == 20
    assert {row.samples for row in profile.rows} == {None}


def test_exceptions_pass_through(profiling: Profiling) -> None:
    with profiling() as profile:
        net = small_net()
        train(net, 2)
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            net(torch.ones(3, 5))
        train(net, 2)
    assert len(profile.rows) == 4


def test_data_parallel_copies_call_themselves(profiling: Profiling) -> None:
    """A replica for another GPU shares the attributes of the original, our timing among them."""
    with profiling():
        net = small_net()
        train(net)
        assert "_compiled_call_impl" in vars(net)
        replica: Any = net._replicate_for_data_parallel()
        assert "_compiled_call_impl" not in vars(replica)
        assert "_compiled_call_impl" in vars(net)


class Wrapped(torch.nn.Module):
    """A class without annotations of its own: torch.jit.script takes those of `nn.Module` for its."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x):  # type: ignore[no-untyped-def]
        return self.inner(x)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("make", [small_net, lambda: Wrapped(small_net())])
def test_script_and_trace(profiling: Profiling, make: Callable[[], torch.nn.Module]) -> None:
    with profiling():
        net = make()
        train(net)
        net.eval()
        x = torch.ones(3, 4)
        traced, scripted = torch.jit.trace(net, x), torch.jit.script(net)
        torch.jit.save(scripted, io.BytesIO())
        assert torch.equal(traced(x), net(x))
        assert torch.equal(scripted(x), net(x))
        assert torch.equal(torch.fx.symbolic_trace(net)(x), net(x))


def test_stop_after(profiling: Profiling) -> None:
    with profiling(stop_after=3) as profile:
        net = small_net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        others = register_optimizer_step_post_hook(lambda *_: None)  # torch calls it after the one that stops
        for _ in range(400):
            train(net, 1, optimizer)
            profile.session.helper._stop.wait(0.005)
            if not profile.session.recorder.active:
                break
        train(net, 10, optimizer)
        others.remove()
        assert "_compiled_call_impl" not in vars(net)
    assert profile.records("e")[0].status == "stopped"
    assert len(profile.rows) >= 23
