"""What looks at the numbers of a training see."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.utils.flop_counter import FlopCounterMode

from ddlprof.collect.facts import subnormals
from ddlprof.collect.facts.subnormals import Subnormal, Subnormals


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    yield
    torch.set_flush_denormal(False)


def trained(scale: float = 1.0) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(64, 128)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(4, 64)).sum().backward()
    optimizer.step()
    for parameter in model.parameters():
        assert parameter.grad is not None
        parameter.grad.mul_(scale)
    return model, optimizer


def looked(optimizer: torch.optim.Optimizer) -> Subnormal | None:
    seen = Subnormals()
    seen.update(optimizer)
    seen.look(16)
    return seen.found


def timed(monkeypatch: pytest.MonkeyPatch, slow: float = 9.0) -> None:
    """Products with numbers near the smallest take so many times as long on the processor of the test."""

    def least_ns(work: object) -> int:
        left = work()  # type: ignore[operator]
        small = ((left != 0) & (left.abs() < subnormals.SMALL)).any()
        return round(1000 * (slow if small else 1.0))

    monkeypatch.setattr(subnormals, "_least_ns", least_ns)


def test_numbers_of_no_training_are_looked_at() -> None:
    seen = Subnormals()
    seen.look(16)
    assert seen.found is None


def test_the_first_updates_are_not_slowed_down() -> None:
    seen = Subnormals()
    seen.update(trained()[1])
    seen.look(8)
    assert seen.found is None


def test_gradients_that_vanish_are_told_with_the_time_that_they_take(monkeypatch: pytest.MonkeyPatch) -> None:
    timed(monkeypatch)
    _, optimizer = trained(1e-36)
    found = looked(optimizer)
    assert found is not None
    assert (found.of, found.times) == ("gradients", 9.0)
    assert found.share > 0.9


def test_moments_of_what_gets_no_gradient_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    timed(monkeypatch)
    model, optimizer = trained()
    for parameter in model.parameters():
        optimizer.state[parameter]["exp_avg"].fill_(1e-39)
    found = looked(optimizer)
    assert found is not None
    assert found.of == "states of the optimizer"
    assert found.share == pytest.approx(0.5, abs=0.02)


def test_other_numbers_take_as_long_as_others(monkeypatch: pytest.MonkeyPatch) -> None:
    timed(monkeypatch)
    found = looked(trained()[1])
    assert found is not None
    assert found.times == 1.0


def test_a_thread_that_takes_them_for_zero_has_none() -> None:
    _, optimizer = trained(1e-36)
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor has no such switch")
    assert looked(optimizer) == Subnormal()


def test_a_look_changes_nothing() -> None:
    model, optimizer = trained(1e-36)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    random = torch.get_rng_state()
    assert looked(optimizer) is not None
    assert all(map(torch.equal, before, model.parameters()))
    assert torch.equal(random, torch.get_rng_state())


def test_what_has_no_such_numbers_or_too_few_is_left_alone() -> None:
    few = nn.Linear(4, 4)
    half = nn.Linear(64, 128, dtype=torch.float16)
    sparse = nn.Embedding(64, 64, sparse=True)
    sparse(torch.arange(4)).sum().backward()
    for model in (few, half):
        assert looked(torch.optim.SGD(model.parameters(), 0.1)) is None
    found = looked(torch.optim.SGD(sparse.parameters(), 0.1))
    assert found is not None
    assert found.of == "parameters"


def test_parts_of_a_tensor_on_other_ranks_are_not_gathered(tmp_path: Path) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        weight = nn.Parameter(distribute_tensor(torch.full((64, 128), 1e-39), mesh, [Shard(0)]))
        assert looked(torch.optim.SGD([weight], 0.1)) is None
    finally:
        torch.distributed.destroy_process_group()


def test_a_mode_of_the_script_sees_nothing_of_it() -> None:
    _, optimizer = trained()
    with FlopCounterMode(display=False) as counter:
        assert looked(optimizer) is None
    assert counter.get_total_flops() == 0


def test_nothing_of_the_script_is_kept_alive() -> None:
    model, optimizer = trained()
    seen = Subnormals()
    seen.update(optimizer)
    seen.look(16)
    refs: list[weakref.ref[object]] = [weakref.ref(model), weakref.ref(optimizer)]
    del model, optimizer
    gc.collect()
    assert [ref() for ref in refs] == [None, None]
    seen.look(16)
    assert seen.found is None
