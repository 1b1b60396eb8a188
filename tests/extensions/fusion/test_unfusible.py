"""Models that compute something else as one than each by itself are found in the first steps."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from ddlprof.extensions.fusion.apart import HERE, apart
from ddlprof.extensions.fusion.equality import NotEqual, checked
from ddlprof.extensions.fusion.loop import SweepLength
from ddlprof.extensions.fusion.planner import FuseOptions, PartSpec
from ddlprof.extensions.fusion.results import EqualityCheck
from ddlprof.extensions.fusion.task import Task
from ddlprof.extensions.fusion.training import TrainingMode
from tests.extensions.fusion.test_fused import NETS, Times


class Noisy(nn.Linear):
    """Draws random numbers in any mode."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input + torch.randn_like(input))


class OnlyTrains(nn.Linear):
    """Draws random numbers, and gives another output in evaluation mode, as models with auxiliary losses do."""

    def forward(self, input: Tensor) -> Tensor:
        found = functional.dropout(super().forward(input), 0.5, self.training)
        return found if self.training else [found]  # type: ignore[return-value]


def scaled_by(model: nn.Sequential) -> nn.Sequential:
    """The weight that scales is that of this model, also in its copies."""
    first = model[0]
    assert isinstance(first, nn.Linear)
    first.register_forward_hook(lambda module, args, output: output * first.weight.sum())
    return model


def check(make: Callable[[], nn.Module], x: Tensor, y: Tensor) -> EqualityCheck:
    data = [(x, y)]
    task = Task(
        make, "make", data, "data", functional.cross_entropy, None, None, "", "sgd", seed=0, device=torch.device("cpu")
    )
    spec = PartSpec(task, [{"seed": 0}, {"seed": 1}], {}, [0, 1], FuseOptions(SweepLength(None, 4)))
    return checked(spec, partial(apart, HERE, task.device), [[0, 1]], TrainingMode())


@pytest.mark.parametrize(
    ("make", "is_random"),
    [
        (lambda: nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 2)), False),
        (lambda: nn.Sequential(nn.Linear(6, 4), nn.Dropout(), nn.Linear(4, 2), Times()), True),
        (lambda: nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2)), False),
        (lambda: Noisy(6, 2), True),
        (lambda: OnlyTrains(6, 2), True),
    ],
)
def test_the_same_models(make: Callable[[], nn.Module], is_random: bool) -> None:
    found = check(make, torch.randn(5, 6), torch.randint(2, (5,)))
    assert (found.largest_difference is None) is is_random
    assert found == EqualityCheck(0, None) or (found.largest_difference or 0.0) < 1e-5


@pytest.mark.parametrize("net", ["convolution and BatchNorm", "Transformer encoder", "GRU"])
def test_the_same_nets(net: str) -> None:
    make, x_of = NETS[net]
    x = x_of()
    check(make, x, torch.randint(12, (6,)) if x.is_floating_point() else x)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: scaled_by(nn.Sequential(nn.Linear(6, 2))), "the gradient of 0.weight is not that of a model by its"),
        (lambda: scaled_by(nn.Sequential(nn.Linear(6, 2), nn.Dropout())), "the gradient of 0.weight is not that of"),
    ],
)
def test_other_models(make: Callable[[], nn.Module], message: str) -> None:
    with pytest.raises(NotEqual, match=message):
        check(make, torch.randn(5, 6), torch.randint(2, (5,)))
