"""The GPUs of a cluster by their names in the catalogue."""

from __future__ import annotations

from dataclasses import replace

from ddlprof.base.errors import UserError
from ddlprof.cluster.machines import Cluster
from instance_catalog import CatalogError, load


def with_catalogue_names(cluster: Cluster) -> Cluster:
    """The same cluster; a name in any spelling becomes that of the catalogue.

    Raises `UserError` naming the closest for a GPU that the catalogue does not know.
    """
    if cluster.gpu_models == (None,):
        return cluster
    catalog = load()
    try:
        names = {model: None if model is None else catalog.gpu(model).gpu_model for model in cluster.gpu_models}
    except CatalogError as error:
        raise UserError(f"--cluster: {error}") from None
    return Cluster(tuple(replace(machine, gpu_model=names[machine.gpu_model]) for machine in cluster.machines))
