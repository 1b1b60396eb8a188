"""What names of process groups say, and to which dimension a collective belongs."""

from __future__ import annotations

import pytest

from ddlprof.model.dimensions import dimension_of, dimension_of_name, dimensions_in, is_known, may_be_tensor
from ddlprof.model.records import CollectiveShape, GroupFacts

NAMES = {
    "data": (
        "mesh_dp", "mesh_dp_replicate", "mesh_dp_shard", "mesh_dp_shard_cp", "mesh_dp_cp", "mesh_dp_shard_in_ep",
        "mesh_efsdp", "mesh_loss", "mesh_batch", "DATA_PARALLEL_GROUP", "DATA_PARALLEL_GROUP_WITH_CP_GLOO",
        "INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP", "EXPERT_DATA_PARALLEL_GROUP", "_ZERO_PARAM_INTRA_PARALLEL_GROUP",
    ),
    "tensor": ("mesh_tp", "tp", "mesh_etp", "TENSOR_MODEL_PARALLEL_GROUP", "EXPERT_TENSOR_PARALLEL_GROUP"),
    "pipeline": ("mesh_pp", "PIPELINE_MODEL_PARALLEL_GROUP", "EMBEDDING_GROUP", "POSITION_EMBEDDING_GROUP"),
    "context": ("mesh_cp", "CONTEXT_PARALLEL_GROUP", "mesh_ulysses", "_SEQUENCE_PARALLEL_GROUP", "mesh_sp"),
    "expert": ("mesh_ep", "EXPERT_MODEL_PARALLEL_GROUP", "EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP"),
    "": (
        "", "undefined", "default_pg", "mesh_default", "mesh_dim_0", "mesh_world", "MODEL_PARALLEL_GROUP",
        "TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP", "TENSOR_AND_CONTEXT_PARALLEL_GROUP", "mesh_dp_tp", "update", "epoch",
        "EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP", "stop", "mesh_embedding",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("dimension", "name"), [(key, name) for key, names in NAMES.items() for name in names])
def test_names_of_groups(dimension: str, name: str) -> None:
    assert dimension_of_name(name) == dimension


def test_all_dimensions_in_a_name() -> None:
    assert dimensions_in("mesh_dp_shard_cp") == {"data", "context"}
    assert [may_be_tensor(name) for name in ("mesh_sp", "mesh_dp_sp", "mesh_cp", "mesh_0")] == [
        True,
        False,
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("group", "op", "dimension"),
    [
        ("0", "allreduce", "data"),
        ("0", "alltoall_base", "expert"),
        ("0:0>1", "send", "expert"),
        ("0:any>1#7", "recv_any_source", "expert"),
        ("a:b", "allreduce", "tensor"),
        ("a:b:3>4", "recv", "tensor"),
        ("1", "allreduce", ""),
        ("1:0>1", "send", ""),
    ],
)
def test_dimension_of_a_collective(group: str, op: str, dimension: str) -> None:
    groups = {"0": GroupFacts("0", "data", "expert"), "a:b": GroupFacts("a:b", "tensor", "tensor")}
    assert dimension_of(CollectiveShape(group, op, 8, 2), groups) == dimension


def test_records_with_other_words_are_of_another_version() -> None:
    assert is_known(GroupFacts("0", "data"))
    assert not is_known(GroupFacts("0", "time"))
    assert not is_known(GroupFacts("0", "data", "time"))
