"""A run records the operators of one step, and the training is what it would be without."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import ddlprof
from ddlprof.model.manifest import Manifest
from ddlprof.model.operators import Operator, StepOperators
from ddlprof.model.records import Flag
from ddlprof.store import load_run
from tests.integration.hooks.conftest import Profile, Profiling

BATCH = 4


class Net(nn.Module):
    def __init__(self, checkpointing: bool = False) -> None:
        super().__init__()
        self.first, self.body, self.last = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 2)
        self.checkpointing = checkpointing

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x).relu()
        y = checkpoint(self.body, y, use_reentrant=True) if self.checkpointing else self.body(y)
        return self.last(nn.functional.dropout(y, 0.1))  # type: ignore[no-any-return]


def train(
    model: nn.Module,
    make: Callable[..., Any] = torch.optim.AdamW,
    steps: int = 6,
    micro_batches: int = 1,
    autocast: bool = False,
) -> None:
    optimizer = make(model.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(micro_batches):
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                loss = model(torch.randn(BATCH, 8)).square().mean()
            loss.backward()
        optimizer.step()


def recorded(profile: Profile) -> StepOperators:
    step = load_run(profile.directory).step
    assert step is not None
    return step


def products(step: StepOperators) -> dict[tuple[int, ...], float]:
    return {each.shape: each.count for each in step.operators if (each.kind, each.phase) == ("product", "forward")}


LAYERS = {(1, BATCH, 16, 8): 1.0, (1, BATCH, 16, 16): 1.0, (1, BATCH, 2, 16): 1.0}


@pytest.mark.parametrize("micro_batches", [1, 3])
def test_recorded_and_left_alone(micro_batches: int, profiling: Profiling) -> None:
    torch.manual_seed(1)
    plain = Net()
    train(plain, micro_batches=micro_batches)
    random_numbers = torch.get_rng_state()
    torch.manual_seed(1)
    with profiling() as profile:
        model = Net()
        train(model, micro_batches=micro_batches)
    assert torch.equal(torch.get_rng_state(), random_numbers)
    for name, value in plain.state_dict().items():
        assert torch.equal(model.state_dict()[name], value)
    step = recorded(profile)
    assert (step.batch, step.precision, step.optimizer, step.unseen) == (BATCH, "fp32", "adamw", ())
    assert products(step) == LAYERS
    weights = sum(p.numel() for p in model.parameters())
    update: list[Operator] = [each for each in step.operators if each.phase == "optimizer"]
    assert [(each.shape, each.count) for each in update] == [((weights, 6), 1.0)]
    # The first of three micro-batches finds no gradients, the others add to them.
    added = sum(each.count * each.shape[0] for each in step.operators if each.name == "add_")
    assert added == pytest.approx(weights * (micro_batches - 1) / micro_batches)
    assert step.memory is not None
    assert step.memory.parameter_bytes == step.memory.trained_bytes == 4 * weights
    assert step.memory.input_bytes == 4 * BATCH * 8
    assert profile.rows[1].flags & Flag.TRACED


def test_the_workload_has_them(profiling: Profiling) -> None:
    model = Net()  # which has to live until it was looked at
    with profiling() as profile:
        train(model, steps=12)
    workload = ddlprof.load(profile.directory).workload()
    assert workload.step == recorded(profile)
    (measured,) = workload.measurements
    timed = Manifest.read(profile.directory).training.launch_us
    assert measured.launch_us == timed
    assert 0.05 < (timed or 0) < 1e5  # the host's, timed when the training had ended


def test_checkpointing_and_lower_precision(profiling: Profiling) -> None:
    model = Net(checkpointing=True)
    with profiling() as profile:
        train(model, autocast=True)
    step = recorded(profile)
    assert step.checkpointing
    assert step.precision == "amp-bf16"
    assert products(step) == LAYERS
    again = [each for each in step.operators if each.name == "addmm" and each.phase == "backward"]
    assert [(each.shape, each.dtype) for each in again] == [((1, BATCH, 16, 16), "bf16")]


def test_both_networks_of_a_gan(profiling: Profiling) -> None:
    """Three backwards and two updates are one step of one batch."""
    maker, judge = nn.Linear(8, 16), nn.Linear(16, 1)
    of_maker, of_judge = (torch.optim.SGD(model.parameters(), 0.1) for model in (maker, judge))
    with profiling() as profile:
        for (x,) in torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(64, 16)), BATCH):
            of_judge.zero_grad()
            judge(x).mean().backward()
            judge(maker(torch.randn(BATCH, 8)).detach()).mean().neg().backward()
            of_judge.step()
            of_maker.zero_grad()
            judge(maker(torch.randn(BATCH, 8))).mean().backward()
            of_maker.step()
    step = recorded(profile)
    assert products(step) == {(1, BATCH, 1, 16): 3.0, (1, BATCH, 16, 8): 1.0}
    assert sorted(each.shape for each in step.operators if each.phase == "optimizer") == [(17, 2), (144, 2)]


def test_a_body_that_no_graph_shows_leaves_the_update_only(profiling: Profiling) -> None:
    model = nn.Sequential(nn.Linear(8, 64).requires_grad_(False), nn.Linear(64, 2))
    with profiling() as profile:
        train(model, steps=12)
    step = recorded(profile)
    assert {each.phase for each in step.operators} == {"optimizer"}
    assert any("in no autograd graph" in sentence for sentence in step.unseen)
    assert ddlprof.load(profile.directory).workload().step is None


def test_an_optimizer_that_is_not_made_like_those_of_torch(profiling: Profiling) -> None:
    """Its state cannot be asked for a parameter's: the rest of the step is known all the same."""

    class State(dict):  # type: ignore[type-arg]
        def get(self, *_: Any) -> Any:
            raise KeyError("ask me differently")

    class Own(torch.optim.Optimizer):
        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, {})
            self.state = State()  # type: ignore[assignment]

        def step(self, closure: Any = None) -> Any:
            with torch.no_grad():
                for parameter in self.param_groups[0]["params"]:
                    parameter -= 0.1 * parameter.grad

    model = Net()
    with profiling() as profile:
        train(model, Own)
    step = recorded(profile)
    assert products(step) == LAYERS
    assert step.optimizer is None
    assert step.unseen == ("the update: no optimizer of torch's kind was seen",)
