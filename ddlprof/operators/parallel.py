"""How the ranks of a job share its work: the strategy, what they divide, and how many have samples of their own.

Found by inspection only, as in `features`: wrappers are recognised by the names of their classes, private names of
torch are accessed with care, and what cannot be determined is None.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ddlprof.base.guarded import Failed, attempt, class_names, nobody
from ddlprof.model.dimensions import CONTEXT, EXPERT, PIPELINE, TENSOR
from ddlprof.model.manifest import LayoutFacts
from ddlprof.torch_private import modules as torch_modules
from ddlprof.torch_private import sharding

_ZERO_OPTIMIZERS = ("ZeroRedundancyOptimizer", "DeepSpeedZeroOptimizer", "DeepSpeedZeroOptimizer_Stage3")
_REPLICATING = ("ReplicateModule", "DistributedDataParallel", "DeepSpeedEngine")
"""Wrappers with which each rank holds the whole model, unless ZeRO is on."""
PARALLEL_STATES = (
    "megatron.core.parallel_state",
    "megatron.core.mpu",
    "megatron.mpu",
    "apex.transformer.parallel_state",
)
"""Modules with Megatron's functions that return the number of ranks of each kind."""
_MOST_FRAMES = 60


@dataclass(frozen=True)
class Parallelism:
    """The same as `TrainingFacts.strategy`, `.zero_stage` and `.data_parallel_ranks`, and `Manifest.layout`."""

    strategy: str = "none"
    zero_stage: int | None = None
    data_parallel_ranks: int | None = None
    layout: LayoutFacts | None = field(default=None, compare=False)


class _Data(NamedTuple):
    """The data-parallel part of a strategy. `ranks`: those with different samples; None: not known."""

    label: str = ""
    zero_stage: int | None = None
    ranks: int | None = None
    copies: int = 1
    """The number of copies of the model that hybrid sharding keeps."""


def parallelism_of(
    modules: Iterable[Any],
    optimizers: Collection[str] = (),
    world_size: int = 1,
    pipeline_ranks: int = 1,
    failed: Failed = nobody,
    degrees: Mapping[str, int] | None = None,
) -> Parallelism | None:
    """How the trained `modules` are divided among the ranks.

    `optimizers`: the names of their classes. `pipeline_ranks`: the ranks among which a schedule was seen to pass
    micro-batches. `degrees`: the ranks along each dimension, as far as process groups tell.
    """
    known = {PIPELINE: 1, **(degrees or {})}
    known[PIPELINE] = max(pipeline_ranks, known[PIPELINE])
    return attempt(lambda: _parallelism(list(modules), optimizers, world_size, known), "strategy", failed)


def pipeline_ranks() -> int:
    """The number of ranks in the pipeline (torch.distributed.pipelining) whose stage calls this; 1 outside of one."""
    if "torch.distributed.pipelining.stage" not in sys.modules:
        return 1
    frame, seen = sys._getframe(1), 0
    while frame is not None and seen < _MOST_FRAMES:
        if frame.f_globals.get("__name__") == "torch.distributed.pipelining.stage":
            return int(getattr(frame.f_locals.get("self"), "group_size", 1))
        frame, seen = frame.f_back, seen + 1  # type: ignore[assignment]
    return 1


def pieces(module: Any) -> dict[tuple[int, str], int]:
    """The number of pieces of each parameter that tensor parallelism divides, by owner and name."""
    found: dict[tuple[int, str], int] = {}
    for part in module.modules():
        for owner, name, tensor, data_dims in attempt(lambda part=part: list(_sharded_by_fsdp(part))) or ():  # type: ignore[misc]
            found[id(owner), name] = _pieces(tensor, data_dims)
    for part in module.modules():
        for name, tensor in torch_modules.parameters_of(part).items():
            if tensor is not None and "DTensor" in class_names(tensor):
                found.setdefault((id(part), name), _pieces(tensor, 0))
    return {place: number for place, number in found.items() if number > 1}


def _parallelism(
    modules: list[Any], optimizers: Collection[str], world_size: int, known: Mapping[str, int]
) -> Parallelism:
    parts = list({id(part): part for module in modules for part in module.modules()}.values())
    data = _data_parallel(parts)
    if data.label == "ddp" and any(name in _ZERO_OPTIMIZERS for name in optimizers):
        data = data._replace(label="zero", zero_stage=data.zero_stage or 1)
    stages = [int(part.num_stages) for part in parts if "PipelineModule" in class_names(part)]
    pieces_of = [number for module in modules for number in pieces(module).values()]
    layout = LayoutFacts(
        tensor=max([1, known.get(TENSOR, 1), *pieces_of]),
        pipeline=max([known[PIPELINE], *stages]),
        context=known.get(CONTEXT, 1),
        expert=known.get(EXPERT, 1),
    )
    ranks = data.ranks
    if (megatron := _megatron()) is not None:
        ranks, layout.tensor, layout.pipeline = megatron
    ranks = _ranks_with_samples(ranks, layout, world_size)
    labels = [data.label] if data.label else []
    labels += ["tp"] * (layout.tensor > 1) + ["pp"] * (layout.pipeline > 1)
    labels += ["cp"] * (layout.context > 1) + ["ep"] * (layout.expert > 1)
    elsewhere = layout.tensor * layout.pipeline * layout.context
    fits = world_size == 1 or ranks is None or ranks * elsewhere == world_size
    if not fits:
        labels.append("other")  # groups are smaller than the job for an unknown reason
    strategy, own = "+".join(labels) or "none", None if ranks == world_size else ranks
    copies = data.copies if data.zero_stage else ranks
    if not fits or not labels or not ranks or not copies or world_size == 1 or ranks % copies:
        return Parallelism(strategy, data.zero_stage, own)
    layout.data_replicate, layout.data_shard = copies, ranks // copies
    return Parallelism(strategy, data.zero_stage, own, layout)


def _ranks_with_samples(data_ranks: int | None, layout: LayoutFacts, world_size: int) -> int | None:
    """The number of ranks with samples of their own. `data_ranks`: those among which gradients are added up.

    Ranks of context parallelism have parts of the same samples, and mostly are among the latter.
    """
    others = layout.tensor * layout.pipeline
    if data_ranks is not None and layout.context > 1 and data_ranks * others == world_size:
        return data_ranks // layout.context if data_ranks % layout.context == 0 else data_ranks
    elsewhere = others * layout.context
    if data_ranks is None and world_size % elsewhere == 0:
        return world_size // elsewhere
    return data_ranks


def _data_parallel(parts: list[Any]) -> _Data:
    """The data-parallel part that divides the most."""
    found = [data for part in parts if (data := _data_parallel_part(part)) is not None]
    if any(hasattr(p, "ds_shape") for part in parts for p in torch_modules.parameters_of(part).values()):
        found.append(_Data("zero", 3, max((data.ranks or 0 for data in found), default=0) or None))
    best = max(found, key=lambda data: ("fsdp" in data.label, data.zero_stage or 0, data.ranks or 0), default=_Data())
    known = [data.ranks for data in found if data.ranks is not None]
    return best._replace(ranks=max(known, default=None))


def _data_parallel_part(part: Any) -> _Data | None:
    """The data-parallel part that one module is as a wrapper; None if it is no wrapper."""
    for name in class_names(part):
        if name == "DataParallel":
            return _Data("dp") if len(getattr(part, "device_ids", ())) > 1 else None
        if name == "FullyShardedDataParallel":
            return _flat_parameters(part)
        if name == "FSDPModule":
            return _fully_shard(part)
        if name == "DeepSpeedEngine":
            stage = int(attempt(part.zero_optimization_stage) or 0)
            return _Data("zero" if stage else "ddp", stage or None, attempt(lambda: int(part.dp_world_size)))
        if name in _REPLICATING:
            return _Data("ddp", None, attempt(lambda: int(part.process_group.size())))
    return None


def _flat_parameters(part: Any) -> _Data:
    """The part of FullyShardedDataParallel."""
    name = getattr(getattr(part, "sharding_strategy", None), "name", "FULL_SHARD")
    between = attempt(lambda: int(sharding.group_between_nodes(part).size())) or 1
    ranks = attempt(lambda: int(part.process_group.size()) * between)
    if name == "NO_SHARD":
        return _Data("ddp", None, ranks)
    return _Data("ddp+fsdp" if between > 1 else "fsdp", sharding.ZERO_STAGES.get(name), ranks, between)


def _fully_shard(part: Any) -> _Data:
    groups = attempt(lambda: list(sharding.parameter_groups(part))) or []
    if not groups:  # the parameters belong to inner wrappers
        return _Data("fsdp")
    meshes = [group.mesh_info for group in groups]
    copies = max(int(getattr(mesh, "replicate_mesh_size", 1)) for mesh in meshes)
    ranks = max(
        int(getattr(mesh, "shard_mesh_size", 1)) * int(getattr(mesh, "replicate_mesh_size", 1)) for mesh in meshes
    )
    gathered_again = any(getattr(group, "post_forward_mesh_info", None) is not None for group in groups)
    return _Data("ddp+fsdp" if copies > 1 else "fsdp", 3 if gathered_again else 2, ranks, copies)


def _sharded_by_fsdp(part: Any) -> Iterator[tuple[Any, str, Any, int]]:
    """Owner, name and sharded tensor of each parameter of fully_shard, and its number of data-parallel dimensions.

    These are the first dimensions of the mesh.
    """
    if "FSDPModule" not in class_names(part):
        return
    for group in sharding.parameter_groups(part):
        dims = int(group.mesh_info.mesh.ndim)
        for parameter in group.fsdp_params:
            for owner, name in sharding.owners(parameter):
                yield owner, name, parameter.sharded_param, dims


def _pieces(tensor: Any, data_dims: int) -> int:
    """The number of pieces into which mesh dimensions after the first `data_dims` divide a DTensor."""
    number = 1
    for dim, placement in enumerate(getattr(tensor, "placements", ())):
        if dim >= data_dims and type(placement).__name__ in sharding.SHARDS:
            number *= int(tensor.device_mesh.size(dim))
    return number


def _megatron() -> tuple[int, int, int] | None:
    """The ranks of Megatron's groups: data-, tensor- and pipeline-parallel; None without Megatron."""
    for name in PARALLEL_STATES:
        state = sys.modules.get(name)
        sizes = None if state is None else attempt(lambda state=state: _sizes(state))  # type: ignore[misc]
        if sizes is not None:
            return sizes
    return None


def _sizes(state: Any) -> tuple[int, int, int]:
    """The sizes of the groups. Raises an error before they are made."""
    return (
        int(state.get_data_parallel_world_size()),
        int(state.get_tensor_model_parallel_world_size()),
        int(state.get_pipeline_model_parallel_world_size()),
    )


def backend_of(dist: Any) -> str:
    """`gloo` or `nccl`; if the script named none, the backend of each device, such as `cpu:gloo`."""
    backend = str(dist.get_backend())
    return str(dist.distributed_c10d.get_backend_config()) if backend == "undefined" else backend
