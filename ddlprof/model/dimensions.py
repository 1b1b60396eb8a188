"""The dimensions of a parallel layout that a process group can belong to, and what the names of groups say of them.

Names come from DeviceMesh (`mesh_dp_shard_cp`), from Megatron and DeepSpeed (`TENSOR_MODEL_PARALLEL_GROUP`), and from
scripts. A name that does not say which dimension it is of is of none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ddlprof.model.records import MESSAGES, CollectiveShape, GroupFacts, is_all_to_all

DATA, TENSOR, PIPELINE, CONTEXT, EXPERT = DIMENSIONS = ("data", "tensor", "pipeline", "context", "expert")
"""All dimensions, in the order shown."""
UNKNOWN = ""
"""The dimension of a group of which nothing tells it, or which spans several dimensions."""
UNKNOWN_SHOWN = "unknown"
"""The word for it in names of rows, which may not be empty."""

_WORDS = {
    **dict.fromkeys(("dp", "ddp", "fsdp", "hsdp", "edp", "efsdp", "zero", "data", "replicate", "shard"), DATA),
    **dict.fromkeys(("batch", "loss"), DATA),  # flattened meshes of torchtitan: all ranks with samples or tokens
    **dict.fromkeys(("tp", "etp", "tensor"), TENSOR),
    **dict.fromkeys(("pp", "pipe", "pipeline"), PIPELINE),
    **dict.fromkeys(("cp", "context", "ulysses", "sp", "sequence", "seq"), CONTEXT),
    **dict.fromkeys(("ep", "expert", "experts", "moe"), EXPERT),
}
_SEQUENCE = frozenset({"sp", "sequence", "seq"})
_WHOLE_NAMES = {
    "embedding_group": PIPELINE,  # the first and the last stage share the gradients of a tied embedding
    "position_embedding_group": PIPELINE,
    "expert_tensor_parallel_group": TENSOR,
    "expert_tensor_and_model_parallel_group": EXPERT,  # tokens go to their experts among all ranks that hold experts
    "hybrid_dp_cp_groups": CONTEXT,
}
"""Names of Megatron whose words alone would mislead."""


def is_known(facts: GroupFacts) -> bool:
    """Whether a group's record has only dimensions of this list."""
    return {facts.dimension, facts.exchanges} <= {*DIMENSIONS, UNKNOWN}


def group_of(name: str) -> str:
    """The process group of a channel `GROUP:SENDER>RECEIVER`; other names are their own."""
    group, _, direction = name.rpartition(":")
    return group if ">" in direction else name


def base_group(shape: CollectiveShape) -> str:
    """The process group of a collective; of a message that of its channel."""
    return group_of(shape.group) if shape.op in MESSAGES else shape.group


def dimension_of(shape: CollectiveShape, groups: Mapping[str, GroupFacts]) -> str:
    """The dimension of a collective of this shape, by the facts about the process groups of its rank."""
    facts = groups.get(base_group(shape))
    if facts is None:
        return UNKNOWN
    return facts.exchanges if shape.op in MESSAGES or is_all_to_all(shape.op) else facts.dimension


def dimension_of_name(name: str) -> str:
    """The dimension that a group's name tells; `UNKNOWN` if it tells none, or several that are not one.

    Data with context or expert parallelism is data: such groups add up gradients over all ranks that have tokens of
    their own. Other mixtures are unknown.
    """
    whole = name.lower().strip("_").removesuffix("_gloo")
    if whole in _WHOLE_NAMES:
        return _WHOLE_NAMES[whole]
    found = dimensions_in(name)
    if found <= {DATA, CONTEXT, EXPERT} and DATA in found:
        return DATA
    return next(iter(found)) if len(found) == 1 else UNKNOWN


def dimensions_in(name: str) -> frozenset[str]:
    """All dimensions that a group's name mentions: data and context for `mesh_dp_shard_cp`."""
    return frozenset(_WORDS[word] for word in _words(name) if word in _WORDS)


def may_be_tensor(name: str) -> bool:
    """Whether a name of sequence parallelism may mean that of tensor parallelism, which shares its group."""
    known = {word for word in _words(name) if word in _WORDS}
    return bool(known) and known <= _SEQUENCE


def _words(name: str) -> list[str]:
    return re.findall(r"[a-z]+", name.lower())
