"""What is alive in backward by the graph alone, beside what was alive when torch ran it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from ddlprof.collect.facts.graph_flow import flow_of
from ddlprof.collect.facts.graph_moments import moments
from ddlprof.collect.facts.graph_reader import GraphReader, storages
from scripts.bench.memory_tracer import Alive

BATCH = 16


class Residual(nn.Module):
    """A block whose input goes around it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + self.narrow(nn.functional.gelu(self.wide(self.norm(x))))
        return out


def residual() -> tuple[nn.Module, torch.Tensor]:
    return nn.Sequential(nn.Linear(64, 128), *(Residual(128) for _ in range(4)), nn.Linear(128, 500)), torch.randn(
        BATCH, 32, 64
    )


def convolutions() -> tuple[nn.Module, torch.Tensor]:
    layers = [nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)]
    body = [nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 500)]
    return nn.Sequential(*layers, *body), torch.randn(BATCH, 3, 32, 32)


def large_weights() -> tuple[nn.Module, torch.Tensor]:
    return nn.Sequential(nn.Linear(800, 1000), nn.ReLU(), nn.Linear(1000, 500)), torch.randn(BATCH, 800)


@pytest.mark.parametrize("make", [residual, convolutions, large_weights])
def test_moments_of_the_graph_are_those_of_torch(make: Callable[[], tuple[nn.Module, torch.Tensor]]) -> None:
    torch.manual_seed(0)
    model, x = make()
    own = [*model.parameters(), *model.buffers(), x]
    alive = Alive({tensor.untyped_storage()._cdata for tensor in own})
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: alive.is_gradient(p.grad))
    with alive:
        logits = model(x)
        rows = logits.flatten(0, -2)
        loss = nn.functional.cross_entropy(rows, torch.zeros(len(rows)).long())
        reader = GraphReader()
        reader.read([loss])
        alive.points.clear()
        loss.backward()
    seen = [*alive.points, (float(alive.gradient_bytes), float(alive.bytes))]
    (graph,) = reader.graphs
    found = moments(graph, flow_of(graph.nodes, BATCH), storages([model]) | {x.untyped_storage().data_ptr()})
    trained = sum(parameter.nbytes for parameter in model.parameters())
    assert max(map(sum, found)) == pytest.approx(max(map(sum, seen)), rel=0.03)
    gradients, _ = found[-1]
    assert gradients == trained == seen[-1][0]
