"""A recorded step as one CUDA graph: on simulated GPUs, where a capture computes nothing and a replay does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ddlprof.base.errors import UserError
from ddlprof.extensions.fusion import Fused, Scaler
from scripts.lab import simulated_cuda
from scripts.lab.simulated_cuda import Machine
from tests.extensions.fusion.test_fused import RATES, Replaces, convolutions, encoder, images, loss_of, words
from tests.short import first_short


@pytest.fixture
def machine() -> Iterator[Machine]:
    with simulated_cuda.simulated() as machine:
        yield machine


def on_cuda(make: Callable[[], nn.Module]) -> list[nn.Module]:
    torch.manual_seed(0)
    return [make().cuda() for _ in RATES]


NETS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor], int]] = {
    "BatchNorm, which writes into buffers": (convolutions, images, 12),
    "buffers that are replaced": (Replaces, lambda: torch.randn(5, 6), 3),
    "Transformer encoder": (encoder, words, 12),
}


@pytest.mark.parametrize("net", first_short(NETS))
def test_a_replayed_step_is_the_recorded_step(machine: Machine, net: str) -> None:
    make, x_of, classes = NETS[net]
    models = on_cuda(make)
    ways = [Fused(models, "adamw", traced=True, cuda_graph=graph, lr=RATES) for graph in (False, True)]
    losses: list[list[Tensor]] = [[], []]
    for _ in range(6):
        x = x_of()
        y = torch.randint(classes, x.shape if x.dtype == torch.int64 else x.shape[:1])
        for fused, kept in zip(ways, losses, strict=True):
            torch.manual_seed(7)
            kept.append(fused.gradients(loss_of, x.cuda(), y.cuda()))
            fused.step()
    assert [fused.not_graphed for fused in ways] == [None, None]
    assert [activity.name for activity in machine.activities].count("graph") == 6 + 1  # the first time also to compare
    assert all(torch.equal(*pair) for pair in zip(*losses, strict=True))
    for number in range(len(models)):
        states = [fused.state_dict(number) for fused in ways]
        assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_a_step_is_one_launch_beside_those_of_the_batch_and_the_update(machine: Machine) -> None:
    models = on_cuda(convolutions)
    fused = Fused(models, "sgd", traced=True, cuda_graph=True, lr=0.1)
    x, y = images().cuda(), torch.randint(12, (6,)).cuda()
    for _ in range(2):
        fused.gradients(loss_of, x, y)
    machine.activities.clear()
    fused.gradients(loss_of, x, y)
    assert [activity.name for activity in machine.activities] == ["aten::copy_", "aten::copy_", "graph", "aten::clone"]


def test_a_scaler_has_new_scales_in_each_replay(machine: Machine) -> None:
    models = on_cuda(lambda: nn.Linear(6, 3))
    fused, scaler = Fused(models, traced=True, cuda_graph=True, lr=0.0), Scaler(len(RATES), "cuda", growth_interval=1)
    x, y = torch.randn(4, 6).cuda(), torch.randint(3, (4,)).cuda()
    found: list[Tensor] = []
    for _ in range(3):
        fused.gradients(loss_of, x, y, scaler=scaler)
        found.append(next(fused.models()[0].parameters()).grad.cpu())  # type: ignore[union-attr]
        fused.step(scaler=scaler)
    assert fused.not_graphed is None
    assert torch.allclose(found[1], 2 * found[0])
    assert torch.allclose(found[2], 4 * found[0])


def test_what_cannot_be_captured_goes_on_from_the_recording_with_a_reason(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = on_cuda(lambda: nn.Linear(6, 3))
    ways = [Fused(models, traced=True, cuda_graph=graph, lr=RATES) for graph in (False, True)]
    launch = machine.launch

    def launch_and_wait(*args: Any) -> int:
        if machine.capturing:
            torch.cuda.current_stream().synchronize()
        return launch(*args)

    monkeypatch.setattr(machine, "launch", launch_and_wait)
    stream = torch.cuda.current_stream()
    for _ in range(3):
        x, y = torch.randn(4, 6).cuda(), torch.randint(3, (4,)).cuda()
        found = []
        for fused in ways:
            found.append(fused.gradients(loss_of, x, y))
            fused.step()
        assert torch.equal(*found)
    assert ways[1].not_graphed == "CUDA error: operation not permitted when stream is capturing"
    assert torch.cuda.current_stream() == stream
    assert ways[1].recordings == 1


def test_a_graph_that_computes_something_else_is_not_used(machine: Machine) -> None:
    """Numbers of a dropout are drawn on the host in the simulation, where a replay does not repeat them."""
    models = on_cuda(lambda: nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3)))
    ways = [Fused(models, traced=True, cuda_graph=graph, lr=RATES) for graph in (False, True)]
    for _ in range(3):
        x, y = torch.randn(5, 6).cuda(), torch.randint(3, (5,)).cuda()
        found = []
        for fused in ways:
            torch.manual_seed(7)
            found.append(fused.gradients(loss_of, x, y))
            fused.step()
        assert torch.equal(*found)
    assert ways[1].not_graphed == "the graph computes something else than the recording"


def test_a_batch_on_the_host_and_models_on_the_host_are_refused(machine: Machine) -> None:
    fused = Fused(on_cuda(lambda: nn.Linear(6, 3)), traced=True, cuda_graph=True)
    fused.gradients(lambda model, x, by: (model(x) * by).mean(), torch.randn(4, 6).cuda(), torch.tensor(2.0))
    assert fused.not_graphed is not None
    assert "is not on the GPU" in fused.not_graphed
    fused = Fused([nn.Linear(6, 3)] * 2, traced=True, cuda_graph=True)
    fused.gradients(loss_of, torch.randn(4, 6), torch.randint(3, (4,)))
    assert fused.not_graphed == "the models are on cpu"
    with pytest.raises(UserError, match="needs traced=True"):
        Fused([nn.Linear(6, 3)] * 2, cuda_graph=True)
