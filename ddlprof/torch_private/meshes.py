"""Device meshes: where their flattened forms are kept."""

from __future__ import annotations

import gc
from typing import Any

from ddlprof.torch_private.names import PrivateName, find, imported

NAMES = (
    PrivateName(
        "torch.distributed.device_mesh:DeviceMesh()._dim_group_names",
        "tells the groups of a mesh without making one",
        "groups are told by their descriptions and by what wraps the model, not by meshes made of existing groups",
        since="2.9",
        needs="distributed",
    ),
)


def group_names_of(mesh: Any) -> list[tuple[str, str]]:
    """The name of each dimension of a mesh that has names, with the name of its process group."""
    names, groups = mesh.mesh_dim_names or (), getattr(mesh, "_dim_group_names", None)
    if groups is None:  # torch 2.8 and older
        groups = [mesh.get_group(name).group_name for name in names]
    return [(str(name), str(group)) for name, group in zip(names, groups, strict=False)]


def all_meshes() -> list[Any]:
    """Every device mesh that exists. Goes through all objects, which takes tens of milliseconds in a large program."""
    kind = find(imported("torch.distributed.device_mesh"), "DeviceMesh")
    return [] if kind is None else [each for each in gc.get_objects() if type(each) is kind]
