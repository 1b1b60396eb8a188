"""Recorded forwards give what forward gives, and one that changes between steps is noticed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from ddlprof.extensions.fusion import Fused
from ddlprof.extensions.fusion.traced import Untraceable
from tests.extensions.fusion.test_fused import NETS, batches, loss_of

FORWARDS = ("convolution and BatchNorm", "Transformer encoder", "LSTM", "buffers and frozen parameters")


@pytest.mark.parametrize("net", FORWARDS)
def test_a_recording_trains_as_forward_does(net: str) -> None:
    torch.manual_seed(0)
    make, x_of = NETS[net]
    models = [make() for _ in range(3)]
    ways = [Fused(models, "sgd", traced=traced, lr=[0.01, 0.02, 0.03], momentum=0.9) for traced in (False, True)]
    for x, y in batches(x_of, 3 if net == "buffers and frozen parameters" else 12)[:6]:
        ways[0].backward(ways[0].forward(loss_of, x, y))
        ways[1].gradients(loss_of, x, y)
        for fused in ways:
            fused.step()
    assert ways[1].recordings == 1
    for number in range(3):
        states = [fused.state_dict(number) for fused in ways]
        assert all(torch.allclose(states[0][name], states[1][name], atol=1e-5) for name in states[0])


class Changes(nn.Module):
    """Its forward is another from some call on, which nothing tells that can be looked at."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.linear, self.calls, self.after = nn.Linear(4, 4), iter(range(1, 99)), after

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) * (1.0 if next(self.calls) <= self.after else 3.0)  # type: ignore[no-any-return]


class Counts(nn.Module):
    """Keeps a count in a plain attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.calls = nn.Linear(4, 4), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.linear(x) / self.calls  # type: ignore[no-any-return]


def mean_of(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).mean()  # type: ignore[no-any-return]


def test_a_forward_that_changes_is_noticed() -> None:
    fused = Fused([Changes(after=4), Changes(after=4)], traced=True)

    def steps() -> None:
        for _ in range(9):  # recorded twice, then compared at the first, second and fourth
            fused.forward(mean_of, torch.ones(2, 4))

    with pytest.raises(Untraceable):
        steps()


def test_a_forward_that_counts_its_calls_is_not_recorded() -> None:
    fused = Fused([Counts(), Counts()], traced=True)
    for _ in range(3):
        fused.forward(mean_of, torch.ones(2, 4))
    assert fused.recordings == 0


def test_eval_and_other_shapes_have_recordings_of_their_own() -> None:
    fused = Fused([nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))] * 2, traced=True)
    for rows in (2, 3):
        fused.forward(mean_of, torch.ones(rows, 4))
    fused.eval()
    one = fused.forward(mean_of, torch.ones(2, 4))
    assert torch.equal(one, fused.forward(mean_of, torch.ones(2, 4)))
    assert fused.recordings == 3


def test_autocast_has_recordings_of_its_own() -> None:
    """Normalisations keep their precision there, and products do not."""
    torch.manual_seed(0)
    models = [nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2)) for _ in range(2)]
    ways = [Fused(models, traced=traced, lr=0.1) for traced in (False, True)]
    for is_cast in (True, False, True, True, False):
        x, y = torch.randn(5, 4), torch.randint(2, (5,))
        for fused in ways:
            with torch.autocast("cpu", torch.bfloat16, enabled=is_cast):
                fused.gradients(loss_of, x, y)
            fused.step()
    assert ways[1].recordings == 2
    states = [fused.state_dict(1) for fused in ways]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
