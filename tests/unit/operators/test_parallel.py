"""How a job's ranks share its work, read off its modules."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from ddlprof.model.manifest import LayoutFacts
from ddlprof.operators.parallel import Parallelism, parallelism_of, pipeline_ranks
from tests.unit.collect.programs import run_all


class Wrapper(nn.Module):
    def __init__(self, **attributes: Any) -> None:
        super().__init__()
        self.module = nn.Linear(4, 4)
        for name, value in attributes.items():
            setattr(self, name, value)


class DistributedDataParallel(Wrapper):
    pass


class FullyShardedDataParallel(Wrapper):
    pass


class DeepSpeedEngine(Wrapper):
    def __init__(self, stage: int, ranks: int) -> None:
        super().__init__(dp_world_size=ranks)
        self.stage = stage

    def zero_optimization_stage(self) -> int:
        return self.stage


class PipelineModule(Wrapper):
    pass


def group(size: int) -> Any:
    return SimpleNamespace(size=lambda: size)


def test_what_is_no_module_gives_none() -> None:
    assert parallelism_of([object()]) is None


def test_zero_optimizers_divide_their_states_only_under_ddp() -> None:
    ddp = DistributedDataParallel(process_group=group(4))
    assert parallelism_of([ddp], ["SGD"], 4) == Parallelism("ddp")
    assert parallelism_of([ddp], ["ZeroRedundancyOptimizer"], 4) == Parallelism("zero", 1)


@pytest.mark.parametrize(
    ("sharding", "between", "expected"),
    [
        ("FULL_SHARD", None, Parallelism("fsdp", 3)),
        ("SHARD_GRAD_OP", None, Parallelism("fsdp", 2)),
        ("NO_SHARD", None, Parallelism("ddp")),
        ("HYBRID_SHARD", 2, Parallelism("ddp+fsdp", 3)),
        ("_HYBRID_SHARD_ZERO2", 2, Parallelism("ddp+fsdp", 2)),
    ],
)
def test_sharding_strategies_of_fsdp(sharding: str, between: int | None, expected: Parallelism) -> None:
    attributes: dict[str, Any] = {"sharding_strategy": SimpleNamespace(name=sharding)}
    if between:
        attributes["_inter_node_pg"] = group(between)
    flat = FullyShardedDataParallel(process_group=group(4 // (between or 1)), **attributes)
    assert parallelism_of([flat], world_size=4) == expected


@pytest.mark.parametrize(("stage", "expected"), [(0, ("ddp", None)), (1, ("zero", 1)), (3, ("zero", 3))])
def test_stages_of_deepspeed(stage: int, expected: tuple[str, int | None]) -> None:
    assert parallelism_of([DeepSpeedEngine(stage, 4)], world_size=4) == Parallelism(*expected)


def test_partitioned_parameters_are_zero_3() -> None:
    model = nn.Linear(4, 3, bias=False)
    model.weight.ds_shape = torch.Size([3, 4])  # type: ignore[attr-defined]
    assert parallelism_of([model]) == Parallelism("zero", 3)


def test_groups_smaller_than_the_job_are_divided_in_another_way() -> None:
    ddp = DistributedDataParallel(process_group=group(2))
    assert parallelism_of([ddp], world_size=4) == Parallelism("ddp+other", None, 2)


def test_stages_of_a_pipeline_see_the_same_samples() -> None:
    assert parallelism_of([nn.Linear(2, 2)], world_size=4, pipeline_ranks=4) == Parallelism("pp", None, 1)
    staged = DistributedDataParallel(process_group=group(2))
    assert parallelism_of([staged], world_size=4, pipeline_ranks=2) == Parallelism("ddp+pp", None, 2)
    assert parallelism_of([PipelineModule(num_stages=2)], world_size=4) == Parallelism("pp", None, 2)
    assert pipeline_ranks() == 1


def test_data_parallel_over_the_gpus_of_one_process() -> None:
    one = nn.DataParallel(nn.Linear(2, 2))
    assert parallelism_of([one]) == Parallelism("none")
    one.device_ids = [0, 1]
    assert parallelism_of([one]) == Parallelism("dp")


def test_megatrons_groups_say_how_many_ranks_there_are_of_each_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    state: Any = ModuleType("megatron.core.parallel_state")
    state.get_data_parallel_world_size = lambda: 2
    state.get_tensor_model_parallel_world_size = lambda: 4
    state.get_pipeline_model_parallel_world_size = lambda: 1
    monkeypatch.setitem(sys.modules, "megatron.core.parallel_state", state)
    ddp = DistributedDataParallel()
    assert parallelism_of([ddp], world_size=8) == Parallelism("ddp+tp", None, 2)


@pytest.mark.parametrize(
    ("degrees", "strategy", "ranks", "layout"),
    [
        ({}, "ddp", None, LayoutFacts(data_replicate=8)),
        ({"context": 2}, "ddp+cp", 4, LayoutFacts(context=2, data_replicate=4)),
        ({"expert": 4}, "ddp+ep", None, LayoutFacts(expert=4, data_replicate=8)),
        ({"tensor": 2}, "ddp+tp+other", None, None),
    ],
)
def test_degrees_of_groups_complete_what_wrappers_tell(
    degrees: dict[str, int], strategy: str, ranks: int | None, layout: LayoutFacts | None
) -> None:
    """The gradients of context parallelism are added up in the group of the wrapper."""
    ddp = DistributedDataParallel(process_group=group(8))
    found = parallelism_of([ddp], (), 8, degrees=degrees)
    assert found == Parallelism(strategy, None, ranks)
    assert found is not None
    assert found.layout == layout


def test_layouts_of_several_dimensions() -> None:
    flat = FullyShardedDataParallel(process_group=group(2), sharding_strategy=SimpleNamespace(name="FULL_SHARD"))
    found = parallelism_of([flat], (), 16, 2, degrees={"tensor": 4, "data": 2})
    assert found == Parallelism("fsdp+tp+pp", 3, 2)
    assert found is not None
    assert found.layout == LayoutFacts(tensor=4, pipeline=2, data_shard=2)
    assert found.layout.text(found.strategy) == "tp4 x pp2 x fsdp2"
    assert not found.layout.is_data_only
    zero = parallelism_of([DeepSpeedEngine(1, 4)], (), 4)
    assert zero is not None
    assert zero.layout is not None
    assert (zero.layout.text(zero.strategy), zero.layout.is_data_only) == ("zero4", True)
    by_hand = parallelism_of([nn.Linear(2, 2)], (), 4, degrees={"tensor": 2})
    assert by_hand is not None
    assert by_hand.layout is not None
    assert by_hand.layout.text(by_hand.strategy) == "tp2 x dp2"


RANKS = """
import os, sys, torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module
from ddlprof.operators.features import model_facts
from ddlprof.operators.parallel import Parallelism, parallelism_of, pipeline_ranks

rank, world = int(sys.argv[1]), 4
dist.init_process_group("gloo", store=dist.FileStore(sys.argv[2], world), rank=rank, world_size=world)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 8)
    def forward(self, x):
        return self.down(self.norm(self.up(x)))

PLAN = {"up": ColwiseParallel(), "down": RowwiseParallel()}
whole = model_facts(Net())
# Half of the matrices and of the bias of the first one; the norm and the last bias are on every rank.
halved = 4 * ((128 + 16 + 128) // 2 + 32 + 8)

def check(net, strategy, stage, ranks, pieces=False):
    found = parallelism_of([net], (), world)
    assert found == Parallelism(strategy, stage, ranks), (found, strategy)
    facts = model_facts(net)
    assert (facts.layers, facts.parameters) == (whole.layers, whole.parameters), facts
    assert facts.gradient_bytes == (halved if pieces else whole.gradient_bytes), facts

def shard(net, **options):
    for layer in (net.up, net.down):
        fully_shard(layer, **options)
    return fully_shard(net, **options)

square = init_device_mesh("cpu", (2, 2), mesh_dim_names=("outer", "inner"))
line = init_device_mesh("cpu", (world,))
check(parallelize_module(Net(), square["inner"], PLAN), "tp", None, 2, pieces=True)
two = parallelize_module(Net(), square["inner"], PLAN)
check(shard(two, mesh=square["outer"]), "fsdp+tp", 3, 2, pieces=True)
check(shard(Net(), mesh=line), "fsdp", 3, None)
check(shard(Net(), mesh=line, reshard_after_forward=False), "fsdp", 2, None)
hybrid = shard(Net(), mesh=square)
hybrid(torch.ones(2, 8)).sum().backward()
check(hybrid, "ddp+fsdp", 3, None)
check(nn.parallel.DistributedDataParallel(Net()), "ddp", None, None)
own = nn.parallel.DistributedDataParallel(Net(), process_group=square["outer"].get_group())
check(own, "ddp+other", None, 2)

from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
seen = []
class Stage(nn.Linear):
    def forward(self, x):
        seen.append(pipeline_ranks())
        return super().forward(x)
stage = PipelineStage(Stage(8, 8), rank, world, torch.device("cpu"))
schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=lambda out, target: (out - target).square().mean())
first, last = [torch.ones(4, 8)] if rank == 0 else [], {"target": torch.ones(4, 8)} if rank == world - 1 else {}
schedule.step(*first, **last)
assert seen[-1] == world, seen
dist.barrier()
os._exit(0)  # torch's own shutdown of gloo sometimes aborts
"""


@pytest.mark.slow
@pytest.mark.dist
def test_meshes_of_four_ranks(tmp_path: Path) -> None:
    run_all(*([RANKS, str(rank), str(tmp_path / "store")] for rank in range(4)), patience_s=120)
