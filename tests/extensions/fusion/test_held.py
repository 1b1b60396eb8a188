"""Gradients of several batches, AMSGrad, and models that go on in another group."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from ddlprof.base.errors import UserError
from ddlprof.extensions.fusion import Fused, Scaler

RATES = [0.01, 0.03, 0.1]
BATCHES = [(torch.randn(8, 4, generator=torch.Generator().manual_seed(each)), torch.randn(8, 2)) for each in range(12)]


def make(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 6, bias=False), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 2)).double()


def loss_of(model: Any, x: Tensor, y: Tensor) -> Tensor:
    return functional.mse_loss(model(x.double()), y.double())


def train(fused: Fused, batches: list[tuple[Tensor, Tensor]]) -> None:
    for x, y in batches:
        fused.gradients(loss_of, x, y)
        fused.step()


def assert_alike(ones: list[nn.Module], others: list[nn.Module]) -> None:
    for one, other in zip(ones, others, strict=True):
        torch.testing.assert_close(dict(one.state_dict()), dict(other.state_dict()), rtol=0, atol=1e-12)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
@pytest.mark.parametrize("traced", [True, False])
def test_some_models_go_on_elsewhere_as_if_nothing_had_been(optimizer: str, traced: bool) -> None:
    values: dict[str, Any] = {"momentum": [0.9, 0.5, 0.0]} if optimizer == "sgd" else {"amsgrad": [1, 0, 1]}
    whole = Fused([make(each) for each in range(3)], optimizer, traced=traced, lr=RATES, **values)
    train(whole, BATCHES[:5])
    kept = [2, 0]
    models = [whole.models()[each] for each in kept]
    chosen: dict[str, Any] = {name: [each[place] for place in kept] for name, each in {**values, "lr": RATES}.items()}
    fewer = Fused(models, optimizer, traced=traced, **chosen)
    fewer.load_optimizer_states([whole.optimizer_state(each) for each in kept])
    for fused in (whole, fewer):
        train(fused, BATCHES[5:])
    assert_alike(fewer.models(), [whole.models()[each] for each in kept])


@pytest.mark.parametrize("traced", [True, False])
@pytest.mark.parametrize("scaled", [True, False])
def test_the_gradients_of_several_batches_are_their_mean(traced: bool, scaled: bool) -> None:
    fused = Fused([make(each) for each in range(3)], "adam", traced=traced, lr=RATES)
    scaler = Scaler(3, init_scale=8.0) if scaled else None
    models = [make(each) for each in range(3)]
    optimizers = [torch.optim.Adam(model.parameters(), rate) for model, rate in zip(models, RATES, strict=True)]
    for step in range(0, 12, 3):
        found = [fused.gradients(loss_of, x, y, scaler=scaler, batches=3) for x, y in BATCHES[step : step + 3]]
        fused.step(scaler=scaler)
        for number, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            optimizer.zero_grad()
            for place, (x, y) in enumerate(BATCHES[step : step + 3]):
                loss = loss_of(model, x, y)
                torch.testing.assert_close(found[place][number], loss.detach(), rtol=0, atol=1e-8)
                (loss / 3).backward()
            optimizer.step()
    for one, other in zip(fused.models(), models, strict=True):
        torch.testing.assert_close(dict(one.state_dict()), dict(other.state_dict()), rtol=0, atol=1e-6)


def test_a_step_of_one_batch_after_one_of_several_uses_its_own_gradients() -> None:
    one, other = (Fused([make(0), make(1)], "sgd", lr=0.1) for _ in range(2))
    for fused in (one, other):
        for x, y in BATCHES[:2]:
            fused.gradients(loss_of, x, y, batches=2)
        fused.step()
    train(one, BATCHES[2:3])
    other.backward(other.forward(loss_of, *BATCHES[2]))
    other.step()
    assert_alike(one.models(), other.models())


def test_a_model_with_a_parameter_that_is_no_number_is_broken() -> None:
    models = [make(each) for each in range(3)]
    with torch.no_grad():
        next(models[1].parameters())[0, 0] = float("nan")
    assert Fused(models, "sgd").broken() == [False, True, False]


@pytest.mark.parametrize(
    ("optimizer", "values", "message"),
    [
        ("sgd", {"momentum": [0.0, 0.5]}, "momentum cannot begin while models train"),
        ("sgd", {"nesterov": 1}, "nesterov cannot change while models train"),
        ("adam", {"amsgrad": [1, 0]}, "amsgrad cannot change while models train"),
        ("adam", {"momentum": 0.5}, "the optimizer has no momentum; it has lr"),
        ("adam", {"lr": [0.1]}, "lr: 1 values for 2 models"),
    ],
)
def test_what_cannot_be_set_is_refused(optimizer: str, values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Fused([make(0), make(1)], optimizer).set(**values)
