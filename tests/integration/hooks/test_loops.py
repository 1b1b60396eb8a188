"""Training loops as others write them: no optimizer of torch's, several, and time in the loop that is no computing."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ddlprof.model.records import NO_BACKWARD, Phase, StepRow
from tests.integration.hooks.conftest import Layers, Profiling

SLEEP_S = 0.02
LAYERS_S = 0.006
"""Two linear layers on the virtual clock, forward and backward."""
STEPS = 12


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8))


def batches(count: int = STEPS) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.randn(4 * count, 64)), batch_size=4)


def burn(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def last(rows: list[StepRow], name: str, count: int = 4) -> float:
    """Mean of a class over the last steps, in seconds; those that were looked into left out."""
    values = [float(getattr(row, f"{name}_ns")) / 1e9 for row in rows if not row.flags][-count:]
    assert values
    return sum(values) / len(values)


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


def test_every_update_of_a_later_and_smaller_model_is_a_step(profiling: Profiling) -> None:
    widths = (64, 8, 32, 8)
    with profiling() as profile:
        for width in widths:
            model = nn.Sequential(nn.Linear(64, width), nn.Linear(width, 1))
            optimizer = torch.optim.Adam(model.parameters())
            for (real,) in batches(3 * STEPS):
                optimizer.zero_grad()
                model(real).mean().backward()
                optimizer.step()
    assert len(profile.rows) == 3 * STEPS * len(widths)
    assert {(row.samples, row.microbatches) for row in profile.rows} == {(4, 1)}


def test_phases_name_the_model_and_keep_nothing_of_it(profiling: Profiling) -> None:
    class Encoder(nn.Sequential):
        pass

    kept = []
    with profiling() as profile:
        for kind, width, make in ((Encoder, 64, torch.optim.SGD), (nn.Sequential, 8, torch.optim.Adam)):
            model = kind(nn.Linear(64, width), nn.Linear(width, 1))
            optimizer = make(model.parameters(), lr=0.1)
            kept.append((weakref.ref(model), weakref.ref(optimizer)))
            for (real,) in batches(3 * STEPS):
                optimizer.zero_grad()
                model(real).mean().backward()
                optimizer.step()
            del model, optimizer
            gc.collect()
            assert (kept[-1][0](), kept[-1][1]()) == (None, None)
    assert profile.records("P") == [Phase(0, "SGD", 4225, "Encoder"), Phase(3 * STEPS, "Adam", 529, "Sequential")]


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
@pytest.mark.parametrize("pause", ["sleep", "burn"])
def test_what_the_loop_does_between_forward_and_update_is_other(
    loop: Callable[..., None], pause: str, profiling: Profiling, layers: Layers
) -> None:
    wait = {"sleep": time.sleep, "burn": burn}[pause]
    with profiling() as profile:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for (x,) in batches():
            loop(model, optimizer, x, lambda: wait(SLEEP_S))
    assert len(profile.rows) == STEPS
    assert last(profile.rows, "other") == pytest.approx(SLEEP_S)
    assert last(profile.rows, "compute") == pytest.approx(last(profile.rows, "step") - SLEEP_S)


@pytest.mark.parametrize("loop", [after_forward, before_update])
def test_torch_operators_between_forward_and_update_are_computing(
    loop: Callable[..., None], profiling: Profiling, layers: Layers
) -> None:
    matrix = torch.randn(8, 8)

    def compute() -> None:
        for _ in range(3):
            nn.functional.linear(matrix, matrix)

    with profiling() as profile:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for (x,) in batches():
            loop(model, optimizer, x, compute)
    assert last(profile.rows, "compute") == last(profile.rows, "step") == pytest.approx(LAYERS_S + 0.003)


def test_an_update_by_hand_does_not_make_a_sleep_computing(profiling: Profiling, layers: Layers) -> None:
    with profiling(may_note=True) as profile:
        model = net()
        for (x,) in batches():
            model(x).sum().backward()
            time.sleep(SLEEP_S)
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.data -= 0.1 * parameter.grad
                parameter.grad = None
    assert last(profile.rows, "other") == pytest.approx(SLEEP_S)


def test_a_profiler_of_the_scripts_own_starts_while_we_look(profiling: Profiling) -> None:
    """Torch allows a thread one profiler: ours has made way in whatever gap the script's begins."""
    names: list[set[str]] = []
    with profiling() as profile:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for (x,) in batches():
            loss = model(x).sum()
            burn(0.002)  # large enough to be looked into
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as theirs:
                loss.backward()
            names.append({event.name for event in theirs.events()})
            optimizer.step()
    assert len(profile.rows) == STEPS
    assert all("aten::mm" in found for found in names)


def test_nothing_is_looked_into_under_a_profiler_of_the_scripts_own(profiling: Profiling) -> None:
    with profiling() as profile:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as theirs:
            for (x,) in batches():
                after_forward(model, optimizer, x, lambda: burn(0.002))
    assert len(profile.rows) == STEPS
    assert sum(event.name == "aten::linear" for event in theirs.events()) == 2 * STEPS


def test_a_profiler_of_the_scripts_own_that_takes_stacks_finds_the_modules(profiling: Profiling) -> None:
    """It reads the module out of the frame of `nn.Module.__call__`, which the search replaces in the first steps."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with profiling() as profile, torch.autograd.profiler.profile(with_stack=True) as theirs:
        for (x,) in batches():
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
    assert len(profile.rows) == STEPS
    assert any(event.name().startswith("nn.Module: Linear") for event in theirs.kineto_results.events())


def test_gradients_without_a_backward_are_no_steps_and_a_note_says_so(profiling: Profiling) -> None:
    model = net()
    parameters = {name: value.detach() for name, value in model.named_parameters()}

    def loss(parameters: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = torch.func.functional_call(model, parameters, (x,)).square().mean()
        return found

    with profiling(may_note=True) as profile:
        for (x,) in batches():
            gradients = torch.func.grad(loss)(parameters, x)
            parameters = {name: value - 0.1 * gradients[name] for name, value in parameters.items()}
    assert profile.rows == []
    assert [note.message for note in profile.records("n")] == [NO_BACKWARD]
