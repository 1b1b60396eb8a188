"""Device meshes: which groups their dimensions have, also after the script has destroyed the groups."""

from __future__ import annotations

from typing import Any

from ddlprof.torch_private.names import PrivateName

NAMES = (
    PrivateName(
        "torch.distributed.device_mesh:DeviceMesh()._dim_group_names",
        "tells which groups the dimensions of a mesh have",
        "a mesh over all ranks does not tell the dimension of their group once the script has destroyed it",
        since="2.9",
        needs="distributed",
    ),
)


def groups_of(mesh: Any) -> list[tuple[str, str, int]]:
    """For each dimension of a mesh that has names: its name, the name of its process group, and their ranks."""
    names, groups = mesh.mesh_dim_names or (), getattr(mesh, "_dim_group_names", None)
    if groups is None:
        groups = [mesh.get_group(number).group_name for number in range(len(names))]
    return [(str(n), str(g), int(mesh.size(number))) for number, (n, g) in enumerate(zip(names, groups, strict=False))]
