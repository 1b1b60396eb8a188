"""Every way to update parameters is one step an update."""

from __future__ import annotations

import contextlib
import gc
import inspect
import weakref
from typing import Any

import pytest
import torch
from torch import nn

from ddlprof.model.manifest import Manifest
from ddlprof.model.records import Flag
from tests.integration.hooks.conftest import Profiling

NEEDS_CLOSURE = (torch.optim.LBFGS,)
CLASSES = [
    kind
    for kind in vars(torch.optim).values()
    if inspect.isclass(kind) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
]


def parameters_for(kind: type[Any]) -> tuple[list[nn.Parameter], Any]:
    """Parameters that the optimizer accepts, and a loss of them."""
    if kind is torch.optim.SparseAdam:
        embedding = nn.Embedding(10, 4, sparse=True)
        return list(embedding.parameters()), lambda: embedding(torch.tensor([1, 2])).sum()
    weight = nn.Parameter(torch.ones(3, 3))  # two dimensions: Muon takes nothing else
    return [weight], lambda: (weight * weight).sum()


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_class_of_torch(kind: type[Any], profiling: Profiling) -> None:
    with profiling() as profile:
        parameters, loss = parameters_for(kind)
        optimizer = kind(parameters, lr=0.1)

        def closure() -> Any:
            optimizer.zero_grad()
            value = loss()
            value.backward()
            return value

        for _ in range(3):
            if kind in NEEDS_CLOSURE:
                optimizer.step(closure)
            else:
                closure()
                optimizer.step()
    assert len(profile.rows) == 3
    assert profile.session.assembler.boundaries.names == {0: kind.__name__}
    assert all(row.flags & ~Flag.TRACED == 0 for row in profile.rows)
    if kind not in NEEDS_CLOSURE:
        assert [row.microbatches for row in profile.rows] == [1, 1, 1]


class Calling(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


@pytest.mark.parametrize("options", [{}, {"foreach": True}, {"fused": True}])
@pytest.mark.parametrize("kind", [torch.optim.SGD, Calling])
def test_variants_and_subclasses(kind: type[Any], options: dict[str, bool], profiling: Profiling) -> None:
    with profiling() as profile:
        net = nn.Linear(4, 2)
        optimizer = kind(net.parameters(), lr=0.1, **options)
        for _ in range(4):
            net(torch.ones(3, 4)).sum().backward()
            optimizer.step()
    assert [(row.microbatches, row.samples) for row in profile.rows] == [(1, 3)] * 4


def test_schedulers_and_accumulation(profiling: Profiling) -> None:
    with profiling() as profile:
        net = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        for _ in range(3):
            for _ in range(4):
                net(torch.ones(3, 4)).sum().backward()
            optimizer.step()
            scheduler.step()
    assert [(row.microbatches, row.samples) for row in profile.rows] == [(4, 12)] * 3


def test_two_optimizers(profiling: Profiling) -> None:
    with profiling() as profile:
        small, large = nn.Linear(2, 2), nn.Linear(20, 20)
        optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in (small, large)]
        for _ in range(4):
            for net, optimizer in zip((small, large), optimizers, strict=True):
                net(torch.ones(3, net.in_features)).sum().backward()
                optimizer.step()
    assert len(profile.rows) == 4
    assert profile.rows[-1].microbatches == 1


def test_optimizer_in_backward(profiling: Profiling) -> None:
    with profiling() as profile:
        net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
        optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in net.parameters()}

        def update(parameter: Any) -> None:
            optimizers[parameter].step()
            optimizers[parameter].zero_grad()

        for parameter in net.parameters():
            parameter.register_post_accumulate_grad_hook(update)
        for _ in range(3):
            net(torch.ones(3, 4)).sum().backward()
    assert [row.microbatches for row in profile.rows] == [1, 1, 1]
    assert all(row.compute_ns for row in profile.rows)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.SGD])
def test_updates_skipped_by_the_scaler(kind: type[Any], fused: bool, profiling: Profiling) -> None:
    with profiling() as profile:
        net = nn.Linear(4, 2)
        optimizer = kind(net.parameters(), lr=0.1, fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        for step in range(4):
            optimizer.zero_grad()
            loss = net(torch.ones(3, 4)).sum() * (float("inf") if step == 1 else 1.0)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
    assert [bool(row.flags & Flag.SKIPPED) for row in profile.rows] == [False, True, False, False]


def test_a_scaler_that_is_off(profiling: Profiling) -> None:
    with profiling() as profile:
        net = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", enabled=False)
        for _ in range(3):
            scaler.scale(net(torch.ones(3, 4)).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
    assert [row.flags & Flag.SKIPPED for row in profile.rows] == [0, 0, 0]


class Failing(torch.optim.SGD):
    fail = False

    def step(self, closure: Any = None) -> Any:
        super().step(closure)
        if self.fail:
            raise MemoryError("no room")


@pytest.mark.parametrize("scaled", [False, True])
def test_an_exception_in_step_that_the_script_catches(scaled: bool, profiling: Profiling) -> None:
    with profiling() as profile:
        net = nn.Linear(4, 2)
        optimizer = Failing(net.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", enabled=scaled)
        for attempt in range(5):
            optimizer.fail = attempt == 2
            scaler.scale(net(torch.ones(3, 4)).sum()).backward()
            with contextlib.suppress(MemoryError):
                scaler.step(optimizer)
            scaler.update()
    assert [row.microbatches for row in profile.rows] == [1, 1, 2, 1]


def test_an_exception_in_step_keeps_no_memory(profiling: Profiling) -> None:
    """Scripts that look for the largest batch that fits count on that."""
    with profiling():
        net = nn.Linear(4, 2)
        optimizer = Failing(net.parameters(), lr=0.1)
        optimizer.fail = True
        net(torch.ones(3, 4)).sum().backward()
        with pytest.raises(MemoryError):
            optimizer.step()
        gone: list[Any] = [weakref.ref(net), weakref.ref(optimizer), weakref.ref(net.weight)]
        del net, optimizer
        gc.collect()
        assert [ref() for ref in gone] == [None, None, None]


class DuckTyped:
    """What a scaler accepts although it is no `torch.optim.Optimizer`."""

    def __init__(self, net: nn.Module) -> None:
        self.param_groups = [{"params": list(net.parameters())}]

    def step(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data.zero_()


def test_duck_typed_optimizer_with_a_scaler(profiling: Profiling) -> None:
    with profiling():
        net = nn.Linear(4, 2)
        optimizer: Any = DuckTyped(net)
        scaler = torch.amp.GradScaler("cpu")
        for _ in range(3):
            scaler.scale(net(torch.ones(3, 4)).sum()).backward()
            scaler.step(optimizer)
            scaler.update()


@pytest.mark.parametrize(
    ("kind", "share"), [(torch.optim.Adam, 0.9), (torch.optim.SGD, 0.0), (torch.optim.LBFGS, None)]
)
def test_an_optimizer_that_is_made_for_each_update(kind: type[Any], share: float | None, profiling: Profiling) -> None:
    """Its moments are lost; plain SGD has none, and LBFGS makes many steps in each update."""
    with profiling() as profile:
        net = nn.Linear(4, 2)
        for _ in range(10):
            optimizer = kind(net.parameters(), lr=0.01)

            def closure(optimizer: Any = optimizer) -> Any:
                optimizer.zero_grad()
                loss = net(torch.ones(3, 4)).sum()
                loss.backward()
                return loss

            if kind is torch.optim.LBFGS:
                optimizer.step(closure)
            else:
                closure()
                optimizer.step()
    training = Manifest.read(profile.directory).training
    if share is None:
        assert (training.passes_in_update or 0) > 1
    else:
        assert training.new_optimizers == pytest.approx(share)
        assert training.passes_in_update == 0


@pytest.mark.parametrize("late", [2, 6])
def test_gradients_of_a_network_whose_optimizer_begins_later_are_not_called_needless(
    late: int, profiling: Profiling
) -> None:
    with profiling() as profile:
        first, second = nn.Linear(32, 32), nn.Linear(32, 32)
        optimizers = [torch.optim.SGD(net.parameters(), lr=1e-3) for net in (second, first)]
        for step in range(40):
            second(first(torch.ones(3, 32))).sum().backward()
            for optimizer in optimizers[: 1 + (step >= late)]:
                optimizer.step()
                optimizer.zero_grad()
    assert not Manifest.read(profile.directory).model.needless_share
