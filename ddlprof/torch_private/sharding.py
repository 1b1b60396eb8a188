"""How FullyShardedDataParallel, fully_shard and tensor parallelism have divided the parameters of a model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from ddlprof.torch_private.names import OLDEST, PrivateName

_FLAT = "torch.distributed.fsdp._flat_param:FlatParameter()"
_FACTS = "parameters, layers and gradients of a model under FullyShardedDataParallel are not counted"
_STRATEGY = "the strategy and tensor parallelism of a model under fully_shard are not told"
_STATE = "torch.distributed.fsdp._fully_shard._fsdp_state:FSDPState()"

_ZERO2 = "torch.distributed.fsdp:ShardingStrategy._HYBRID_SHARD_ZERO2"
_PARAMETER = "torch.distributed.fsdp._fully_shard._fsdp_param:FSDPParam()"
_COPIES = "hybrid sharding is taken for plain sharding"


def _name(path: str, use: str, without_it: str, since: str = OLDEST) -> PrivateName:
    return PrivateName(path, use, without_it, since, needs="distributed")


NAMES = (
    _name("torch.distributed.fsdp._common_utils:_FSDPState()._handle", "finds the flat parameter", _FACTS),
    _name(f"{_FLAT}._param_infos", "finds the parameters in a flat one", _FACTS),
    _name(f"{_FLAT}._params", "tells which of them are trained", _FACTS),
    _name(f"{_FLAT}._shapes", "tells their shapes", _FACTS),
    _name(f"{_FLAT}._shared_param_infos", "tells which are tied", _FACTS),
    _name("torch.distributed.fsdp._init_utils:()._inter_node_pg", "tells how many copies there are", _COPIES),
    _name(_ZERO2, "tells the stage of ZeRO", _COPIES),
    _name("torch.distributed.fsdp:FSDPModule._get_fsdp_state", "tells how fully_shard divides", _STRATEGY, "2.6"),
    _name(f"{_STATE}._mp_policy", "tells the precision of fully_shard", "that precision is not told", "2.6"),
    _name(f"{_STATE}._fsdp_param_group", "tells how fully_shard divides", _STRATEGY, "2.6"),
    _name(f"{_STATE}._fsdp_param_groups", "tells how fully_shard divides", _STRATEGY, "2.12"),
    _name(f"{_PARAMETER}._module_info", "tells whose a sharded parameter is", _STRATEGY, "2.6"),
    _name("torch.distributed.tensor.placement_types:_StridedShard", "tells pieces of a tensor", _STRATEGY, "2.5"),
)
"""Before 2.6, what fully_shard makes was in other modules under the same names."""

ZERO_STAGES = {"FULL_SHARD": 3, "HYBRID_SHARD": 3, "SHARD_GRAD_OP": 2, "_HYBRID_SHARD_ZERO2": 2}
"""The ZeRO stage of each sharding strategy of FullyShardedDataParallel; strategies not listed divide nothing."""
SHARDS = ("Shard", "_StridedShard")
"""Names of the classes of placements that divide a tensor."""


class FlatParameter(NamedTuple):
    """A parameter that FullyShardedDataParallel has put into a flat one."""

    owner: Any
    name: str
    shape: tuple[int, ...]
    dtype: Any
    trained: bool
    tied_to: tuple[Any, str] | None = None
    """Owner and name of the other parameter that it shares its data with; None if it is not tied."""


def is_flat(tensor: Any) -> bool:
    """Whether it is a flat parameter."""
    return hasattr(tensor, "_param_infos")


def flat_parameters(part: Any) -> Iterator[FlatParameter]:
    """Parameters behind the flat parameter of a module, if it has one; tied ones last. Raises in another version."""
    flat = getattr(getattr(part, "_handle", None), "flat_param", None)
    if flat is None:
        return
    found: dict[tuple[int, str], FlatParameter] = {}
    originals = flat._params or [flat] * len(flat._param_infos)
    for info, shape, original in zip(flat._param_infos, flat._shapes, originals, strict=True):
        of = FlatParameter(info.module, info.param_name, tuple(shape), flat.dtype, original.requires_grad)
        found[id(info.module), info.param_name] = of
    yield from found.values()
    for tied in flat._shared_param_infos:
        first = found[id(tied.prim_module), tied.prim_param_name]
        yield first._replace(owner=tied.module, name=tied.param_name, tied_to=(first.owner, first.name))


def group_between_nodes(part: Any) -> Any:
    """The group in which hybrid sharding keeps copies. Raises AttributeError where there is none."""
    return part._inter_node_pg


def policy(part: Any) -> Any:
    """The mixed precision of a module that fully_shard was called on."""
    return part._get_fsdp_state()._mp_policy


def parameter_groups(part: Any) -> Iterator[Any]:
    """The parameter groups of a module that fully_shard was called on."""
    state = part._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is None:
        groups = [state._fsdp_param_group]
    yield from (group for group in groups if group is not None)


def owners(parameter: Any) -> list[tuple[Any, str]]:
    """Modules that have a sharded parameter of such a group, and its name in each."""
    info = parameter._module_info
    return [(info.module, info.param_name), *zip(info.shared_modules, info.shared_param_names, strict=True)]
