"""Device meshes: which groups their dimensions have, also after the script has destroyed the groups."""

from __future__ import annotations

from typing import Any

from ddlprof.torch_private.names import PrivateName

NAMES = (
    PrivateName(
        "torch.distributed.device_mesh:DeviceMesh()._dim_group_names",
        "tells which groups the dimensions of a mesh have",
        "a mesh does not tell the dimensions of its groups once the script has destroyed them",
        since="2.9",
        needs="distributed",
    ),
)


def groups_of(mesh: Any) -> list[tuple[str, str, int]]:
    """For each dimension of a mesh that has names: its name, the name of its process group, and their ranks."""
    names = mesh.mesh_dim_names or ()
    return [(str(name), group_name(mesh, number), int(mesh.size(number))) for number, name in enumerate(names)]


def group_name(mesh: Any, number: int) -> str:
    """The name of the process group of a mesh's dimension of that number. Raises where it is not known."""
    groups = getattr(mesh, "_dim_group_names", None)
    return str(mesh.get_group(number).group_name if groups is None else groups[number])
