"""Which dimension of the parallel layout each process group belongs to; runs in the helper thread, some times in a run.

What names a group decides: its description (DeviceMesh's `mesh_tp`, Megatron's `TENSOR_MODEL_PARALLEL_GROUP`), the
variables in which Megatron and DeepSpeed keep it, the mesh that it is a dimension of. Where nothing names it, the
modules tell what they use it for: wrappers of data parallelism, and weights that tensor parallelism divides. A group
of the whole job is data where data parallelism is all that divides the work. Nothing here makes a group.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ddlprof.base.alive import instances_of
from ddlprof.base.guarded import attempt, class_names
from ddlprof.collect.seen_groups import SeenGroup, SeenGroups
from ddlprof.model.dimensions import (
    CONTEXT,
    DATA,
    EXPERT,
    TENSOR,
    UNKNOWN,
    dimension_of_name,
    dimensions_in,
    may_be_tensor,
)
from ddlprof.model.records import GroupFacts
from ddlprof.operators.parallel import PARALLEL_STATES, Parallelism, parallelism_of
from ddlprof.torch_private import meshes, sharding
from ddlprof.torch_private import modules as torch_modules
from ddlprof.torch_private.collectives import group_names

if TYPE_CHECKING:
    from ddlprof.collect.facts.model_inspector import ModelInspector

_LIBRARIES = (*PARALLEL_STATES, "deepspeed.utils.groups")
"""Modules that keep their process groups in variables with names in capitals."""
_DATA_GROUPS = ("process_group", "data_parallel_group", "seq_data_parallel_group", "shard_process_group")
_OF_MESH = ("shard_process_group", "replicate_process_group", "reduce_scatter_process_group")
_WRAPPERS = (
    "DistributedDataParallel", "FullyShardedDataParallel", "DeepSpeedEngine", "ReplicateModule", "SyncBatchNorm",
)  # fmt: skip
_BY_MESH = "mesh_"
_MATRIX = 2
"""The most dimensions of a weight that tensor parallelism divides; experts are stacked in weights of three."""


class GroupDimensions:
    """What is known of the groups so far. `seen`: the groups that the hooks of collectives have seen."""

    def __init__(self, seen: SeenGroups) -> None:
        self._seen = seen
        self._names: dict[str, set[str]] = {}
        """What names each group, by the group."""
        self._sizes: dict[str, int] = {}
        self._described: set[str] = set()
        """Groups that a mesh made and described by its own name; other meshes of this name are of earlier groups."""
        self._used: dict[str, str] = {}
        """The dimension that the modules use a group for, by the group."""
        self._told: dict[str, GroupFacts] = {}
        self._searched_meshes = False
        self._looked_at = 0
        self._whole = UNKNOWN
        """The dimension of groups of all ranks."""

    @property
    def is_due(self) -> bool:
        """Whether the hooks have seen more since the last look."""
        return self._seen.changes != self._looked_at

    @property
    def told(self) -> dict[str, str]:
        """The dimension of each group of which one is known."""
        return {name: facts.dimension or facts.exchanges for name, facts in list(self._told.items())}

    def learn(self, probe: ModelInspector, optimizers: Collection[str], world_size: int) -> Parallelism | None:
        """Looks at all groups and at the trained modules, and returns how the ranks share the work.

        `optimizers`: the names of their classes. None if no trained module was seen, or it is not known.
        """
        self._looked_at = self._seen.changes
        modules = probe.modules
        attempt(lambda: self._look(modules), "groups", probe.failed)
        if not modules:
            return None
        found = parallelism_of(modules, optimizers, world_size, probe.pipeline_ranks, probe.failed, self._degrees())
        if found is not None and found.layout is not None and found.layout.is_data_only:
            self._whole = DATA
        return found

    def _look(self, modules: list[Any]) -> None:
        for name, description, size in _existing():
            self._describe(name, description, size)
        for seen in list(self._seen.by_name.values()):
            self._describe(seen.name, seen.description, seen.ranks)  # the script may have destroyed it
        for variable, group in _of_libraries():
            self._name(group, variable)
        for group, dimension in _of_modules(modules):
            self._used.setdefault(group, dimension)
        if not self._searched_meshes and any(map(self._is_open, list(self._seen.by_name.values()))):
            self._searched_meshes = True
            for dimension, group, size in _of_meshes():
                if group not in self._described and self._sizes.get(group) == size:
                    self._name(group, dimension)

    def _describe(self, group: str, description: str, size: int) -> None:
        self._sizes[group] = size
        if description.startswith(_BY_MESH):
            self._described.add(group)
        self._name(group, description)

    def _name(self, group: str, name: str) -> None:
        if dimensions_in(name) or dimension_of_name(name):
            self._names.setdefault(group, set()).add(name)

    def _degrees(self) -> dict[str, int]:
        """The number of ranks along each dimension, by the sizes of the groups of it alone."""
        found: dict[str, int] = {}
        for group, size in self._sizes.items():
            names = [name for name in self._names.get(group, ()) if not may_be_tensor(name)]
            alone = {dimension_of_name(name) for name in names if len(dimensions_in(name)) == 1}
            for dimension in alone if names else {self._of_group(group)} - {UNKNOWN}:
                found[dimension] = max(found.get(dimension, 1), size)
        return found

    def news(self) -> Iterator[GroupFacts]:
        """The facts of seen groups that were not told before, or otherwise."""
        for seen in list(self._seen.by_name.values()):
            facts = GroupFacts(seen.name, self._dimension(seen), self._exchanges(seen), seen.ranks)
            before = self._told.get(seen.name)
            if facts != before and (before is not None or facts.dimension or facts.exchanges):
                self._told[seen.name] = facts
                yield facts

    def _dimension(self, seen: SeenGroup) -> str:
        return self._of_group(seen.name) or (self._whole if seen.is_whole else UNKNOWN)

    def _exchanges(self, seen: SeenGroup) -> str:
        used = self._used.get(seen.name)
        return seen.exchanges or self._of_name(seen.name) or (TENSOR if used == TENSOR else UNKNOWN)

    def _is_open(self, seen: SeenGroup) -> bool:
        return not self._dimension(seen) or (seen.has_exchanges and not self._exchanges(seen))

    def _of_group(self, group: str) -> str:
        named, used = self._of_name(group), self._used.get(group, UNKNOWN)
        if used == DATA and named in (CONTEXT, EXPERT):  # as in a name of both
            return DATA
        return named or used

    def _of_name(self, group: str) -> str:
        """The dimension that the names of a group agree on."""
        names = self._names.get(group, set())
        if names and self._used.get(group) == TENSOR and all(map(may_be_tensor, names)):
            return TENSOR
        found = {dimension for name in names if (dimension := dimension_of_name(name))}
        return found.pop() if len(found) == 1 else UNKNOWN


def _existing() -> Iterator[tuple[str, str, int]]:
    """Name, description and size of each process group that this rank is in."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not attempt(dist.is_initialized):
        return
    for group in attempt(lambda: list(group_names(dist))) or ():
        size = attempt(lambda group=group: int(group.size()))  # type: ignore[misc]
        if size:
            yield str(group.group_name), str(getattr(group, "group_desc", "")), size


def _of_meshes() -> Iterator[tuple[str, str, int]]:
    """The dimensions of all meshes as `meshes.groups_of` gives them.

    Goes through all objects, which takes tens of milliseconds in a large program.
    """
    kind = getattr(sys.modules.get("torch.distributed.device_mesh"), "DeviceMesh", None)
    for mesh in instances_of(kind) if kind is not None else ():
        yield from attempt(lambda mesh=mesh: meshes.groups_of(mesh)) or ()  # type: ignore[misc]


def _of_libraries() -> Iterator[tuple[str, str]]:
    """The variables of Megatron and DeepSpeed that hold groups, each with the name of a group in it."""
    for library in _LIBRARIES:
        module = sys.modules.get(library)
        for variable, value in list(vars(module).items()) if module is not None else ():
            if "GROUP" in variable and dimension_of_name(variable):
                for group in _groups_in(value):
                    yield variable, group


def _groups_in(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        value = list(value.values())
    for each in value if isinstance(value, (list, tuple)) else [value]:
        name = _name_of(each)
        if name:
            yield name


def _name_of(group: Any) -> str:
    """The name of a process group; empty if it is none."""
    return str(attempt(lambda: group.group_name) or "") if "ProcessGroup" in class_names(group) else ""


def _of_modules(modules: list[Any]) -> Iterator[tuple[str, str]]:
    """The groups that modules use, each with its dimension."""
    for part in {id(part): part for module in modules for part in module.modules()}.values():
        for group in attempt(lambda part=part: list(_data_groups(part))) or ():  # type: ignore[misc]
            if name := _name_of(group):
                yield name, DATA
        for name in attempt(lambda part=part: list(_tensor_groups(part))) or ():  # type: ignore[misc]
            yield name, TENSOR


def _data_groups(part: Any) -> Iterator[Any]:
    """The process groups that one module as a wrapper of data parallelism reduces gradients in."""
    names = class_names(part)
    if any(name in _WRAPPERS for name in names):
        for attribute in _DATA_GROUPS:
            yield getattr(part, attribute, None)
    if "FullyShardedDataParallel" in names:
        yield attempt(lambda: sharding.group_between_nodes(part))
    if "FSDPModule" in names or "ReplicateModule" in names:
        for group in sharding.parameter_groups(part):
            for attribute in _OF_MESH:
                yield getattr(group.mesh_info, attribute, None)


def _tensor_groups(part: Any) -> Iterator[str]:
    """The names of the groups whose ranks have pieces of this module's own weights; those of fully_shard are data."""
    for tensor in torch_modules.parameters_of(part).values():
        if tensor is None or "DTensor" not in class_names(tensor) or tensor.ndim > _MATRIX:
            continue
        for dim, placement in enumerate(tensor.placements):
            if type(placement).__name__ in sharding.SHARDS:
                yield meshes.group_name(tensor.device_mesh, dim)
