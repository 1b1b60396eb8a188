"""Scaled losses: each model has the scale and the updates that a GradScaler of its own gives it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from ddlprof.extensions.fusion import Fused, Scaler
from ddlprof.extensions.fusion.optimizers import torch_optimizer

RATES = [0.01, 0.02, 0.03]
VALUES: list[tuple[str, dict[str, Any]]] = [
    ("sgd", {"momentum": 0.9, "dampening": 0.2}),
    ("sgd", {"momentum": 0.9}),
    ("adam", {}),
    ("adamw", {"beta2": [0.9, 0.99, 0.999]}),
]


def loss_of(model: Any, x: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(model(x), y)


class PartlyUsed(nn.Module):
    """A parameter has a gradient in some steps only, so parameters have different numbers of updates."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.out = nn.Linear(6, 5), nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.one(x))
        return self.out(self.two(x) if len(x) > 4 else x)  # type: ignore[no-any-return]


def made(kind: str) -> list[nn.Module]:
    torch.manual_seed(0)
    nets: list[nn.Module] = [
        PartlyUsed() if kind == "partly used" else nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
        for _ in RATES
    ]
    with torch.no_grad():
        nets[1].get_submodule("out" if kind == "partly used" else "2").weight.mul_(300)  # type: ignore[operator]
    return nets


@pytest.mark.parametrize(("traced", "clip"), [(False, None), (True, 0.5)])
@pytest.mark.parametrize("kind", ["plain", "partly used"])
@pytest.mark.parametrize(("optimizer", "values"), VALUES)
def test_an_overflow_leaves_out_the_update_of_its_model_alone(
    optimizer: str, values: dict[str, Any], kind: str, clip: float | None, traced: bool
) -> None:
    models = made(kind)
    options = {"init_scale": 2.0**126, "growth_interval": 2}
    fused = Fused(models, optimizer, traced=traced, lr=RATES, **values)
    scaler = Scaler(len(RATES), **options)  # type: ignore[arg-type]
    own = [{name: each[n] if isinstance(each, list) else each for name, each in values.items()} for n in range(3)]
    optimizers = [
        torch_optimizer(optimizer, model, {"lr": rate, **one})
        for model, rate, one in zip(models, RATES, own, strict=True)
    ]
    scalers = [torch.amp.GradScaler("cpu", **options) for _ in RATES]  # type: ignore[arg-type]
    skipped = set()
    for step in range(12):
        x, y = torch.randn(4 + step % 2, 6), torch.randint(3, (4 + step % 2,))
        if traced:
            fused.gradients(loss_of, x, y, scaler=scaler)
        else:
            fused.backward(scaler.scale(fused.forward(loss_of, x, y)))
        fused.step(clip, scaler=scaler)
        for number, (model, each, one) in enumerate(zip(models, optimizers, scalers, strict=True)):
            before = one.get_scale()
            each.zero_grad()
            one.scale(loss_of(model, x, y)).backward()
            if clip is not None:
                one.unscale_(each)
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            one.step(each)
            one.update()
            if one.get_scale() < before:
                skipped.add((number, step))
        assert scaler.scales.tolist() == [one.get_scale() for one in scalers]
    assert any((0, step) not in skipped for _, step in skipped)  # one overflowed and another did not
    assert len(skipped) < 3 * 12
    for number, model in enumerate(models):
        state = fused.state_dict(number)
        for name, tensor in model.state_dict().items():
            close = 1e-4 * float(tensor.abs().max())  # weights as large as those of the second carry rounding on
            assert torch.allclose(tensor, state[name], rtol=1e-4, atol=close), name


def test_half_precision_with_autocast_trains_as_alone() -> None:
    models = made("plain")
    fused = Fused(models, "sgd", traced=True, lr=RATES)
    scaler = Scaler(len(RATES), init_scale=1024.0)
    optimizers = [torch.optim.SGD(model.parameters(), rate) for model, rate in zip(models, RATES, strict=True)]
    scalers = [torch.amp.GradScaler("cpu", init_scale=1024.0) for _ in RATES]
    for _ in range(5):
        x, y = torch.randn(8, 6), torch.randint(3, (8,))
        with torch.autocast("cpu", torch.float16):
            fused.gradients(loss_of, x, y, scaler=scaler)
            losses = [loss_of(model, x, y) for model in models]
        fused.step(scaler=scaler)
        for loss, each, one in zip(losses, optimizers, scalers, strict=True):
            each.zero_grad()
            one.scale(loss).backward()
            one.step(each)
            one.update()
    for number, model in enumerate(models):
        state = fused.state_dict(number)
        for name, tensor in model.state_dict().items():
            assert torch.allclose(tensor, state[name], rtol=2e-3, atol=2e-3), name
