"""Training loops as others write them: no optimizer of torch's, several, and time in the loop that is no computing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ddlprof.collect.hooks.operators import LegacyProfiler
from ddlprof.model.records import Flag, StepRow
from tests.integration.hooks.conftest import Profiling
from tests.integration.hooks.virtual_operators import Clock

PAUSE_NS = 20_000_000
COMPUTING_NS = 3_000_000
STEPS = 12


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8))


def batches(count: int = STEPS) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.randn(4 * count, 64)), batch_size=4)


def last(rows: list[StepRow], count: int = 4) -> set[tuple[int, int]]:
    """Computing and the rest of the last steps; those that were looked into left out."""
    values = [(row.compute_ns, row.other_ns) for row in rows if not row.flags][-count:]
    assert len(values) == count
    assert all(row.step_ns == row.compute_ns + row.other_ns for row in rows)  # making a batch takes no time here
    return set(values)


# -- where a step ends --------------------------------------------------------------------------------------------


def test_an_update_written_by_hand(profiling: Profiling) -> None:
    with profiling(may_note=True) as profile:
        model = net()
        for (x,) in batches():
            model(x).sum().backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    assert parameter.grad is not None
                    parameter.sub_(parameter.grad, alpha=0.1)
                    parameter.grad = None
    assert len(profile.rows) == STEPS
    assert [row.samples for row in profile.rows] == [4] * STEPS
    (note,) = profile.records("n")
    assert "each batch of the loader with a backward pass is a step" in note.message


def test_an_update_by_hand_without_a_loader(profiling: Profiling) -> None:
    with profiling(may_note=True) as profile:
        model = net()
        for _ in range(STEPS):
            for parameter, gradient in zip(model.parameters(), _gradients(model, torch.randn(4, 64)), strict=True):
                parameter.data.sub_(gradient, alpha=0.1)
    assert len(profile.rows) == STEPS
    (note,) = profile.records("n")
    assert "each forward after a backward pass begins a step" in note.message


def _gradients(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    for parameter in model.parameters():
        parameter.grad = None
    model(x).sum().backward()
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("critic_updates", [1, 5])
def test_a_gan_has_one_step_a_round_from_the_first(critic_updates: int, profiling: Profiling) -> None:
    with profiling() as profile:
        critic, generator = nn.Linear(64, 1), nn.Linear(8, 64)
        critic_optimizer = torch.optim.Adam(critic.parameters())
        generator_optimizer = torch.optim.Adam(generator.parameters())
        for index, (real,) in enumerate(batches(STEPS * critic_updates)):
            critic_optimizer.zero_grad()
            critic(real).mean().backward()
            critic(generator(torch.randn(4, 8)).detach()).mean().backward()
            critic_optimizer.step()
            if (index + 1) % critic_updates == 0:
                generator_optimizer.zero_grad()
                critic(generator(torch.randn(4, 8))).mean().backward()
                generator_optimizer.step()
    assert len(profile.rows) == STEPS
    assert [row.samples for row in profile.rows] == [4 * critic_updates] * STEPS
    assert {row.microbatches for row in profile.rows} == {1}


@pytest.mark.parametrize(("name", "steps"), [("Adam#1", 6), ("Adam#2", 3), ("Adam", 3), ("SGD", 2)])
def test_optimizers_of_one_class_are_told_apart_by_number(name: str, steps: int, profiling: Profiling) -> None:
    with profiling(step_optimizer=name) as profile:
        small, large, other = nn.Linear(2, 2), nn.Linear(20, 20), nn.Linear(200, 200)
        optimizers = [torch.optim.Adam(small.parameters()), torch.optim.Adam(large.parameters())]
        optimizers.append(torch.optim.SGD(other.parameters()))  # type: ignore[arg-type]
        for index in range(6):
            for every, (model, optimizer) in enumerate(zip((small, large, other), optimizers, strict=True), 1):
                if index % every == 0:
                    model(torch.ones(3, model.in_features)).sum().backward()
                    optimizer.step()
    assert len(profile.rows) == steps


def test_truncated_backpropagation_has_a_step_an_update(profiling: Profiling) -> None:
    with profiling() as profile:
        model = nn.LSTM(8, 8)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = DataLoader(TensorDataset(torch.randn(6, 20, 8)), batch_size=2)
        for (x,) in loader:
            for part in x.transpose(0, 1).split(5):
                model(part)[0].sum().backward()
                optimizer.step()
    assert len(profile.rows) == 3 * 4
    assert {row.microbatches for row in profile.rows} == {1}


# -- what is no computing ------------------------------------------------------------------------------------------


def after_forward(model: nn.Module, optimizer: Any, x: torch.Tensor, pause: Callable[[], None]) -> None:
    loss = model(x).sum()
    pause()
    loss.backward()
    optimizer.step()


def before_update(model: nn.Module, optimizer: Any, x: torch.Tensor, pause: Callable[[], None]) -> None:
    model(x).sum().backward()
    pause()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def between_micro_batches(model: nn.Module, optimizer: Any, x: torch.Tensor, pause: Callable[[], None]) -> None:
    model(x[:2]).sum().backward()
    pause()
    model(x[2:]).sum().backward()
    optimizer.step()


def between_forwards(model: nn.Module, optimizer: Any, x: torch.Tensor, pause: Callable[[], None]) -> None:
    first = model(x).sum()
    pause()  # an environment's step, in policy gradients
    (first + model(x).sum()).backward()
    optimizer.step()


LOOPS = [after_forward, before_update, between_micro_batches, between_forwards]


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("computing_ns", [0, COMPUTING_NS], ids=["", "operators too"])
@pytest.mark.parametrize("how", ["sleep", "burn"])
def test_what_the_loop_does_between_forward_and_update_is_other(
    how: str, computing_ns: int, loop: Callable[..., None], profiling: Profiling, clock: Clock
) -> None:
    def pause() -> None:
        clock.operator(computing_ns)
        if how == "sleep":
            clock.sleep(PAUSE_NS / 1e9)
        else:
            clock.work(PAUSE_NS)

    with profiling() as profile:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for (x,) in batches():
            loop(model, optimizer, x, pause)
    assert len(profile.rows) == STEPS
    assert last(profile.rows) == {(computing_ns, PAUSE_NS)}


@pytest.mark.parametrize("loop", [after_forward, before_update])
def test_torch_operators_between_forward_and_update_are_computing(
    loop: Callable[..., None], profiling: Profiling, clock: Clock
) -> None:
    with profiling() as profile:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for (x,) in batches():
            loop(model, optimizer, x, lambda: clock.operator(COMPUTING_NS))
    assert last(profile.rows) == {(COMPUTING_NS, 0)}


def test_torch_tells_when_operators_ran() -> None:
    """The others are told by the virtual clock instead."""
    matrix = torch.randn(64, 64)
    log = LegacyProfiler(torch)
    for _ in range(2):
        assert log.start()
        for _ in range(3):
            nn.functional.linear(matrix, matrix)  # which calls others
        operators = log.stop()()
        assert len(operators) == 3
        times = [time for operator in operators for time in operator]
        assert times == sorted(times)
        assert times[0] >= 0


def test_an_update_by_hand_does_not_make_a_sleep_computing(profiling: Profiling, clock: Clock) -> None:
    with profiling(may_note=True) as profile:
        model = net()
        for (x,) in batches():
            model(x).sum().backward()
            clock.sleep(PAUSE_NS / 1e9)
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.data -= 0.1 * parameter.grad
                parameter.grad = None
    assert last(profile.rows) == {(0, PAUSE_NS)}


def test_a_profiler_of_the_scripts_own_starts_while_we_look(profiling: Profiling, clock: Clock) -> None:
    """Torch allows a thread one profiler: ours has made way in whatever gap the script's begins."""
    names: list[set[str]] = []
    with profiling() as profile:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for (x,) in batches():
            loss = model(x).sum()
            clock.work(COMPUTING_NS)  # large enough to be looked into
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as theirs:
                loss.backward()
            names.append({event.name for event in theirs.events()})
            optimizer.step()
    assert len(profile.rows) == STEPS
    assert any(row.flags & Flag.TRACED for row in profile.rows)
    assert all("aten::mm" in found for found in names)


def test_nothing_is_looked_into_under_a_profiler_of_the_scripts_own(profiling: Profiling, clock: Clock) -> None:
    with profiling() as profile:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as theirs:
            for (x,) in batches():
                after_forward(model, optimizer, x, lambda: clock.work(COMPUTING_NS))
    assert len(profile.rows) == STEPS
    assert not any(row.flags & Flag.TRACED for row in profile.rows)
    assert sum(event.name == "aten::linear" for event in theirs.events()) == 2 * STEPS
