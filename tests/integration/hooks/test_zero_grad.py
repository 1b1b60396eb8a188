"""Zeroing gradients is computing wherever it is called, and ends no step; `test_idioms` has the times."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import nn

from ddlprof.model.events import Kind
from tests.integration.hooks.conftest import Profiling

STEPS = 5


def train(optimizer_options: dict[str, Any], zeroing: dict[str, Any], at: str, steps: int = STEPS) -> list[float]:
    """The trained parameters; gradients are zeroed first in the step, before the backward, or after the update."""
    torch.manual_seed(0)
    model = nn.Linear(8, 8)
    optimizer = torch.optim.Adam(model.parameters(), **optimizer_options)
    for _ in range(steps):
        if at == "first":
            optimizer.zero_grad(**zeroing)
        loss = model(torch.ones(4, 8)).square().mean()
        if at == "before backward":
            model.zero_grad(**zeroing)
        loss.backward()
        optimizer.step()
        if at == "after update":
            optimizer.zero_grad(**zeroing)
    return [float(value) for parameter in model.parameters() for value in parameter.detach().flatten()]


@pytest.mark.parametrize("at", ["first", "before backward", "after update"])
@pytest.mark.parametrize("zeroing", [{}, {"set_to_none": True}, {"set_to_none": False}], ids=["default", "free", "0"])
@pytest.mark.parametrize("optimizer", [{}, {"foreach": True}, {"fused": True}], ids=["plain", "foreach", "fused"])
def test_every_way_is_seen_and_no_step_begins_or_ends_with_it(
    profiling: Profiling, optimizer: dict[str, Any], zeroing: dict[str, Any], at: str
) -> None:
    plain = train(optimizer, zeroing, at)
    events: list[int] = []
    with profiling() as profile:
        emit = profile.session.recorder.emit

        def recorded(kind: int, *payload: Any) -> bool:
            events.append(kind)
            return emit(kind, *payload)

        profile.session.recorder.emit = recorded  # type: ignore[assignment]
        assert train(optimizer, zeroing, at) == plain
    assert events.count(Kind.ZERO_GRAD_BEGIN) == events.count(Kind.ZERO_GRAD_END) == STEPS
    assert [row.microbatches for row in profile.rows] == [1] * STEPS


class Slow(torch.optim.SGD):
    """Has a way of its own, which ends in torch's."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Of the network, then of nothing."""
        super().zero_grad(set_to_none)
        raise KeyError("of the script")


def test_an_error_of_the_scripts_own_is_the_scripts(profiling: Profiling) -> None:
    model = nn.Linear(8, 8)
    optimizer = Slow(model.parameters(), lr=0.1)
    with profiling() as profile:
        for _ in range(3):
            model(torch.ones(4, 8)).mean().backward()
            optimizer.step()
            with pytest.raises(KeyError, match="of the script"):
                optimizer.zero_grad()
    assert len(profile.rows) == 3


def test_it_looks_as_without_us(profiling: Profiling) -> None:
    """Other libraries ask what it takes."""
    before = [inspect.signature(owner.zero_grad) for owner in (torch.optim.Optimizer, nn.Module)]
    with profiling():
        assert [inspect.signature(owner.zero_grad) for owner in (torch.optim.Optimizer, nn.Module)] == before
        assert nn.Module.zero_grad.__doc__
