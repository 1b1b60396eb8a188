"""The operators that a run reads off its graph are those that `ddlprof features` lists of the same model."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ddlprof.model.operators import Operator
from ddlprof.operators.trace_step import Inputs, StepSettings, trace_step
from tests.unit.collect.facts.graph_jobs import JOBS, flops, lower, step

BATCH = 4
BYTES = {"mlp": 1.1, "convolutions": 1.1, "encoder": 1.1, "gpt": 1.05}
"""Factors between the bytes of a phase. What differs: the numbers that a loss begins its backward with, and what a
transformer does with the mask that it does not have."""
LOWER = {"mlp": 1.15, "encoder": 1.15, "gpt": 1.1}
"""The same with autocast, whose lists of operators are other ones on CPUs than on GPUs."""


def traced(name: str, precision: str) -> tuple[Operator, ...]:
    build, make, _ = JOBS[name]

    def inputs(batch: int) -> Inputs:
        x = make(1)
        return Inputs([torch.zeros((batch, *x.shape[1:]), dtype=x.dtype)], {})

    return trace_step(build(), inputs, StepSettings(BATCH, precision, "none")).operators


def read(name: str, precision: str) -> tuple[Operator, ...]:
    build, make, _ = JOBS[name]
    model, x = build(), make(BATCH)
    with lower(precision):
        loss: Tensor = model(x).sum()  # as a trace has it
    return step(model, loss, BATCH).operators


@pytest.mark.parametrize("precision", ["fp32", "amp-bf16"])
@pytest.mark.parametrize("name", ["mlp", "convolutions", "encoder", "gpt"])
def test_flops_are_equal(name: str, precision: str) -> None:
    mine, reference = read(name, precision), traced(name, precision)
    for phase in ("forward", "backward"):
        assert flops(mine, phase) == flops(reference, phase)


CASES = [(name, "fp32", factor) for name, factor in BYTES.items()]
CASES += [(name, "amp-bf16", factor) for name, factor in LOWER.items()]
