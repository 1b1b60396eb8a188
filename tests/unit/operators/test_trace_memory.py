"""The memory of a traced step, beside what torch really keeps on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ddlprof.model.operators import StepMemory
from ddlprof.operators.trace_memory import Storages, blocks
from ddlprof.operators.trace_step import Inputs, StepSettings, trace_step


def feedforward() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))


def convolutions() -> nn.Module:
    layers = [nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 8, 3)]
    return nn.Sequential(*layers, nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(8 * 6 * 6, 10))


def memory_of(model: nn.Module, *shape: int, **settings: Any) -> StepMemory:
    step = trace_step(model, lambda batch: Inputs([torch.empty((batch, *shape))], {}), StepSettings(**settings))
    assert step.memory is not None
    return step.memory


@pytest.mark.parametrize(("factory", "shape"), [(feedforward, (64,)), (convolutions, (3, 16, 16))])
def test_saved_is_what_torch_saves(factory: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    model, x = factory(), torch.randn(8, *shape)
    own = {each.untyped_storage().data_ptr() for each in [*model.parameters(), *model.buffers(), x]}
    saved: dict[int, int] = {}
    kept: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            saved[storage.data_ptr()] = storage.nbytes()
            kept.append(tensor)  # so that no other takes its place
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = model(x)
    memory = memory_of(factory(), *shape, batch=8, optimizer="none")
    in_sight = output.numel() * 4 + 4  # the output and its sum are there, too
    assert memory.saved_bytes == pytest.approx(sum(saved.values()) + in_sight, rel=0.01)


def test_parameters_and_inputs_are_told_apart() -> None:
    memory = memory_of(feedforward(), 64, batch=8)
    weights = 4 * sum(each.numel() for each in feedforward().parameters())
    assert (memory.parameter_bytes, memory.trained_bytes, memory.input_bytes) == (weights, weights, 4 * 8 * 64)
    assert memory.largest_tensor_bytes == 4 * 64 * 256
    assert memory.points[-1][0] == pytest.approx(weights, abs=16)  # all gradients, in the end, and the loss


def test_blocks_are_the_repeated_parts() -> None:
    layer = lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU())  # noqa: E731
    stages = nn.Sequential(*(nn.Sequential(*(layer() for _ in range(3))) for _ in range(2)))
    assert len(blocks(nn.ModuleList(layer() for _ in range(6)))) == 6
    assert len(blocks(nn.ModuleDict({"stages": stages}))) == 6
    assert blocks(feedforward()) == []


def test_a_storage_is_there_until_its_last_view_goes() -> None:
    storages = Storages()
    base = torch.empty(100)
    view = base[:10]
    assert storages.number(base) == storages.number(view) == 0
    storages.now = 5
    del base
    assert storages.alive() == [0]
    del view
    assert storages.alive() == []
    assert storages.all[0].gone == 5
    assert storages.moments() == [(0.0, 400.0), (0.0, 0.0)]
