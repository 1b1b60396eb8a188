"""Terms of the loss that go through the weights: those that are sums of squares, and what has the same gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

from ddlprof.analysis.rules.updates import weight_penalty
from ddlprof.model.operators import Operator
from tests.unit.analysis.rules.loop_cases import UPDATED, penalised
from tests.unit.analysis.rules.made_up import facts
from tests.unit.collect.facts.graph_jobs import step

Term = Callable[[Iterator[nn.Parameter]], Tensor]

SQUARES: dict[str, Term] = {
    "pow": lambda weights: torch.stack([w.pow(2).sum() for w in weights]).sum(),
    "square": lambda weights: torch.stack([w.square().sum() for w in weights]).sum(),
    "product": lambda weights: torch.stack([(w * w).sum() for w in weights]).sum(),
}
OTHERS: dict[str, Term] = {
    "norms": lambda weights: torch.stack([w.norm() for w in weights]).sum(),
    "norm": lambda weights: torch.stack([w.pow(2).sum() for w in weights]).sum().sqrt(),
    "roots": lambda weights: torch.stack([w.pow(2).sum() ** 0.5 for w in weights]).sum(),
    "means": lambda weights: torch.stack([w.pow(2).mean() for w in weights]).sum(),
    "absolute values": lambda weights: torch.stack([w.abs().sum() for w in weights]).sum(),
    "distance": lambda weights: torch.stack([(w - 1).pow(2).sum() for w in weights]).sum(),
}


@pytest.mark.parametrize("name", [*SQUARES, *OTHERS])
def test_only_sums_of_squares_are_a_weight_decay(name: str) -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    loss = model(torch.randn(8, 64)).pow(2).mean() + 0.1 * (SQUARES | OTHERS)[name](model.parameters())
    update = Operator("optimizer", "optimizer", "sgd", "fp32", (64 * 64 + 129, 4), 0.0, 1e5, 1.0, 1.0)
    operators = (*step(model, loss, 8).operators, update)
    found = weight_penalty(facts(UPDATED, compiled=False, device="cpu", operators=operators))
    assert (found is not None) == (name in SQUARES)


@pytest.mark.parametrize(("optimizer", "cure"), [("Adam", "weight_decay of Adam"), ("AdamW", "torch._foreach_add_(")])
def test_weight_decay_is_the_cure_where_its_gradients_are_the_same(optimizer: str, cure: str) -> None:
    told = weight_penalty(facts(UPDATED, **penalised(), optimizer=optimizer))
    assert told is not None
    assert told.next.startswith(f"if these are squares, {cure}")


@pytest.mark.parametrize("name", ["SGD", "Adam", "Adagrad", "RMSprop", "AdamW"])
def test_weight_decay_moves_weights_as_the_squares_of_the_loss_do(name: str) -> None:
    """But for AdamW, as the advice says."""
    moved: list[Tensor] = []
    for in_loss in (True, False):
        weight = nn.Parameter(torch.linspace(-1, 2, 8))
        optimizer = getattr(torch.optim, name)([weight], lr=0.1, weight_decay=0.0 if in_loss else 0.2)
        for _ in range(3):
            optimizer.zero_grad()
            ((weight * torch.arange(8.0)).sum() + in_loss * 0.1 * weight.pow(2).sum()).backward()
            optimizer.step()
        moved.append(weight.detach())
    assert torch.allclose(moved[0], moved[1], atol=1e-5) == (name != "AdamW")
