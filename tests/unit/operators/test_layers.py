"""The layers of a model, as a run reads them from the graph and as `ddlprof features` traces them."""

from __future__ import annotations

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
        assert found.step.layers == EXPECTED


def test_a_weight_that_lies_the_other_way_is_turned() -> None:
    class Conv1D(nn.Module):  # as GPT-2 of transformers has it
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(4, 12))  # inputs, outputs

    assert [each.shape for each in layers([nn.Sequential(Conv1D())], {})] == [(12, 4)]


def test_a_model_with_very_many_is_not_told_apart() -> None:
    many = nn.Sequential(*[nn.Linear(1, 1) for _ in range(5001)])
    assert layers([many], {}) == ()
