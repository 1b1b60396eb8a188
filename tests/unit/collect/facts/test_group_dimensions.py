"""What tells the dimensions of process groups, on one rank of a job whose other ranks are made up."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

from ddlprof.collect.facts.group_dimensions import GroupDimensions
from ddlprof.collect.seen_groups import SeenGroups
from ddlprof.model.manifest import LayoutFacts
from ddlprof.operators.parallel import Parallelism

WORLD = 8


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    gc.collect()  # meshes of earlier tests
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=WORLD)
    try:
        yield
    finally:
        dist.destroy_process_group()


class Groups:
    """Learns from modules what they say of the groups that were seen."""

    def __init__(self) -> None:
        self.seen = SeenGroups()
        self.dimensions = GroupDimensions(self.seen)

    def see(self, *groups: Any, exchanges: bool = False) -> None:
        for each in groups:
            self.seen.add(each.group_name, each, each.size(), WORLD)
            if exchanges:
                self.seen.first_exchange(each.group_name)

    def learn(self, *modules: nn.Module) -> Parallelism | None:
        probe: Any = SimpleNamespace(modules=list(modules), pipeline_ranks=1, failed=self.failed)
        return self.dimensions.learn(probe, [], WORLD)

    def failed(self, fact: str, error: Exception) -> None:
        raise AssertionError(fact) from error

    def told(self) -> dict[str, tuple[str, str]]:
        return {facts.group: (facts.dimension, facts.exchanges) for facts in self.dimensions.news()}


def world() -> Any:
    return dist.group.WORLD


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))


def divided(parameter: Any, mesh: DeviceMesh) -> nn.Parameter:
    """As tensor parallelism or expert parallelism leaves a weight."""
    placements = [Shard(0) if dim == mesh.ndim - 1 else Replicate() for dim in range(mesh.ndim)]
    return nn.Parameter(DTensor.from_local(parameter.detach(), mesh, placements, run_check=False))


def test_names_of_a_mesh_and_of_its_flattened_dimensions() -> None:
    mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("dp_shard", "cp", "tp"))
    flat = mesh["dp_shard", "cp"]._flatten("dp_shard_cp")
    groups, named = Groups(), [mesh.get_group(name) for name in ("dp_shard", "cp", "tp")]
    groups.see(*named, flat.get_group(), world())
    groups.learn(net())
    data, context, tensor = (each.group_name for each in named)
    assert groups.told() == {
        data: ("data", "data"), context: ("context", "context"), tensor: ("tensor", "tensor"),
        flat.get_group().group_name: ("data", "data"),
    }  # fmt: skip
    assert groups.told() == {}


def test_a_mesh_made_of_a_group_names_it() -> None:
    ranks = list(range(4))
    own = dist.new_group(ranks)
    kept = DeviceMesh.from_group(own, "cpu", mesh=torch.tensor(ranks), mesh_dim_names=("pp",))
    groups = Groups()
    groups.see(own)
    groups.learn(net())
    assert groups.told() == {own.group_name: ("pipeline", "pipeline")}
    assert kept.ndim == 1


def test_descriptions_of_megatron_are_read_where_the_group_is_seen() -> None:
    own = dist.new_group([0, 1], group_desc="TENSOR_MODEL_PARALLEL_GROUP")
    name, groups = own.group_name, Groups()
    groups.see(own)
    dist.destroy_process_group(own)
    groups.learn()
    assert groups.told() == {name: ("tensor", "tensor")}


@pytest.mark.parametrize("module", ["megatron.core.parallel_state", "deepspeed.utils.groups"])
def test_variables_of_libraries(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    own = [dist.new_group([0, n]) for n in range(1, 5)]
    state: Any = ModuleType(module)
    state._TENSOR_MODEL_PARALLEL_GROUP, state._EXPERT_PARALLEL_GROUP = own[0], {"ep_size_2": own[1]}
    state._HIERARCHICAL_CONTEXT_PARALLEL_GROUPS, state._MODEL_PARALLEL_GROUP = [own[2]], own[3]
    state._DATA_PARALLEL_GROUP, state._DATA_PARALLEL_GLOBAL_RANKS = None, [0, 1]
    monkeypatch.setitem(sys.modules, module, state)
    groups = Groups()
    groups.see(*own)
    groups.learn(net())
    expected = ("tensor", "expert", "context")
    assert groups.told() == {g.group_name: (each, each) for g, each in zip(own, expected, strict=False)}


def test_the_group_of_a_wrapper_is_data_and_its_all_to_alls_are_not() -> None:
    groups = Groups()
    groups.see(world(), exchanges=True)
    found = groups.learn(DistributedDataParallel(net()))
    assert groups.told() == {world().group_name: ("data", "")}
    assert found is not None
    assert found.layout == LayoutFacts(data_replicate=WORLD)


def test_hybrid_sharding_makes_the_whole_job_data() -> None:
    mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("outer", "inner"))
    groups = Groups()
    groups.see(mesh.get_group(0), mesh.get_group(1), world())
    model = net()
    fully_shard(model, mesh=mesh)
    found = groups.learn(model)
    assert set(groups.told().values()) == {("data", "")}
    assert found == Parallelism("ddp+fsdp", 3)
    assert found is not None
    assert found.layout == LayoutFacts(data_shard=4, data_replicate=2)


@pytest.mark.parametrize("name", ["b", "sp"])
def test_weights_in_pieces_make_a_group_tensor(name: str) -> None:
    mesh = init_device_mesh("cpu", (4, 2), mesh_dim_names=("a", name))
    model = nn.Linear(8, 4)
    model.weight = divided(model.weight, mesh[name])
    groups = Groups()
    groups.see(mesh.get_group(0), mesh.get_group(1), world())
    found = groups.learn(model)
    assert groups.told() == {mesh.get_group(1).group_name: ("tensor", "tensor")}
    assert found == Parallelism("tp", None, 4)
    assert found is not None
    assert found.layout == LayoutFacts(tensor=2, data_replicate=4)


def test_nothing_is_guessed_of_groups_that_nobody_names() -> None:
    groups, own = Groups(), dist.new_group([0, 1])
    groups.see(own, world(), exchanges=True)
    found = groups.learn(net())
    assert groups.told() == {}
    assert found == Parallelism("none")
    assert found is not None
    assert found.layout is None


def test_groups_are_looked_at_again_only_where_more_was_seen() -> None:
    groups = Groups()
    groups.see(world())
    assert groups.dimensions.is_due
    groups.learn(net())
    assert not groups.dimensions.is_due
    groups.see(world(), exchanges=True)
    assert groups.dimensions.is_due
