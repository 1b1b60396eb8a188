"""The layers of a model, as a run reads them from the graph and as `ddlprof features` traces them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from ddlprof.model.operators import Layer
from ddlprof.operators.features import layers
from ddlprof.operators.graph_flops import GraphFlops
from ddlprof.operators.model_alone import look, parse_input
from ddlprof.operators.trace_step import StepSettings


def net() -> nn.Sequential:
    shared = nn.Linear(8, 8)
    body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 16, 8), shared, shared)
    body[3].bias.requires_grad_(False)
    return body


EXPECTED = (
    Layer("0", (4 * 3 * 9 + 4) * 4.0, 2.0 * 2 * 16 * 4 * 27),
    Layer("1", 8 * 4.0, 0.0),
    Layer("3", 64 * 8 * 4.0, 2.0 * 2 * 64 * 8, (8, 64)),
    Layer("4", (8 * 8 + 8) * 4.0, 2 * 2.0 * 2 * 8 * 8, (8, 8)),  # used twice
)


def test_a_run_finds_them_in_the_graph() -> None:
    model = net()
    flops = GraphFlops()
    for _ in range(2):  # two micro-batches
        loss = model(torch.zeros(2, 3, 6, 6)).sum()
        flops.count(loss)
        loss.backward()
    assert layers([nn.DataParallel(model)], flops.of_weights_in_microbatch()) == EXPECTED


def test_a_model_that_nobody_runs_has_the_same() -> None:
    for precision in ("fp32", "amp-bf16"):
        found = look(net(), [parse_input("3,6,6")], StepSettings(batch=2, precision=precision))
        assert found.step is not None
        assert tuple(replace(layer, input_bytes=None, saved_bytes=None) for layer in found.step.layers) == EXPECTED


class Residual(nn.Module):
    """Adds what two layers make of a batch to the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.wide, self.back = nn.LayerNorm(8), nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.add(x, self.back(torch.relu(self.wide(self.norm(x)))))


@pytest.mark.parametrize("blocks", [2, 6])  # of six equal ones, three are traced
def test_what_passes_between_layers_is_all_that_is_still_needed_from_before(blocks: int) -> None:
    model = nn.Sequential(nn.Linear(4, 8), *[Residual() for _ in range(blocks)])
    found = look(model, [parse_input("4")], StepSettings(batch=10))
    assert found.step is not None
    width = 8 * 10 * 4.0
    assert [layer.input_bytes for layer in found.step.layers] == [None, *[width, 2 * width, 5 * width] * blocks]
    assert found.step.memory is not None
    saved = [layer.saved_bytes for layer in found.step.layers]
    assert sum(each for each in saved if each is not None) == found.step.memory.saved_bytes
    assert saved[2] == saved[5] == 4 * width  # the result of relu


class Tied(nn.Module):
    """The first and the last layer have the same weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.last.weight = self.first.weight
        self.end = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> Any:
        return self.end(self.last(self.middle(self.first(x))))


def test_a_model_is_not_divided_within_layers_that_share_a_weight() -> None:
    found = look(Tied(), [parse_input("8")], StepSettings(batch=4))
    assert found.step is not None
    assert {layer.name: layer.input_bytes for layer in found.step.layers} == {
        "first": None, "middle": None, "last": None, "end": 8 * 4 * 4.0
    }  # fmt: skip


def test_a_weight_that_lies_the_other_way_is_turned() -> None:
    class Conv1D(nn.Module):  # as GPT-2 of transformers has it
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(4, 12))  # inputs, outputs

    assert [each.shape for each in layers([nn.Sequential(Conv1D())], {})] == [(12, 4)]


def test_a_model_with_very_many_is_not_told_apart() -> None:
    many = nn.Sequential(*[nn.Linear(1, 1) for _ in range(5001)])
    assert layers([many], {}) == ()
