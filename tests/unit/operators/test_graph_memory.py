"""What a graph keeps for its backward is told without unpacking it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from ddlprof.operators.graph_operators import step_of
from ddlprof.operators.graph_reader import GraphReader, storages, storages_of
from ddlprof.operators.trace_step import Inputs, StepSettings, trace_step
from tests.unit.collect.facts.graph_jobs import JOBS, flops, needs_hooks_told, read, step


@needs_hooks_told
def test_saved_memory_is_what_torch_keeps() -> None:
    for name, (build, make, loss) in JOBS.items():
        if name == "lstm":
            continue  # its kernel has a workspace that hooks do not see
        model, kept = build(), dict[int, int]()

        def pack(tensor: Tensor, kept: dict[int, int] = kept) -> Tensor:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        x = make(4)
        with saved_tensors_hooks(pack, lambda tensor: tensor):
            hooked = loss(model(x))
        owned = storages([model])
        expected = sum(size for where, size in kept.items() if where not in owned)
        del hooked
        found = step(model, loss(model(x)), 4)
        assert found.saved_bytes == expected, name


def test_saved_memory_behind_hooks_is_not_known_and_not_unpacked() -> None:
    unpacked: list[Tensor] = []

    def unpack(tensor: Tensor) -> Tensor:
        unpacked.append(tensor)
        return tensor

    model, reader = nn.Linear(4, 4), GraphReader()
    with saved_tensors_hooks(lambda tensor: tensor, unpack):
        reader.read(model(torch.ones(2, 4)).sum())
    found = step_of(reader, 2)
    assert not unpacked
    assert found is not None
    assert found.saved_bytes is None
    assert flops(found.operators, "forward") == 64


@needs_hooks_told
@pytest.mark.parametrize("name", ["mlp", "convolutions", "encoder", "gpt"])
def test_memory_is_about_that_of_a_trace(name: str) -> None:
    """Which counts what is alive at the end of forward, the output of the model included."""
    build, make, _ = JOBS[name]
    model, x = build(), make(4)
    reader = read(model(x).sum())
    found = step_of(reader, 4, storages([model]) | storages_of([x]))

    def inputs(batch: int) -> Inputs:
        return Inputs([torch.zeros((batch, *x.shape[1:]), dtype=x.dtype)], {})

    traced = trace_step(build(), inputs, StepSettings(batch=4, optimizer="none")).memory
    assert found is not None
    assert traced is not None
    assert found.saved_bytes == pytest.approx(traced.saved_bytes, rel=0.2)
    assert found.temporary_bytes == pytest.approx(traced.temporary_bytes, rel=0.2)
    peaks = [max(sum(point) for point in points) for points in (found.points, traced.points)]
    assert peaks[0] == pytest.approx(peaks[1], rel=0.12)
