"""Runs sweeps on a cluster of Dask or of Ray through joblib's backends: one that is there, or one made here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from ddlprof.base.errors import UserError

MODULES = {"dask": "distributed", "ray": "ray"}
"""The module that is there where what is needed is installed."""


@contextmanager
def on_cluster(where: str | None) -> Iterator[None]:
    """Within its context, `run_cases` without `workers` uses that cluster: `dask` or `ray` makes one of this machine's
    cores, `dask:ADDRESS` (of its scheduler) or `ray:ADDRESS` (`auto`, or `ray://HOST:PORT`) joins one; None changes
    nothing.

    The workers need ddlprof, and the modules of policies of your own. Raises `UserError` where it cannot be had.
    """
    if where is None:
        yield
        return
    kind, _, address = where.partition(":")
    if kind not in MODULES:
        raise UserError(f"--on {where}: expected dask, dask:ADDRESS, ray or ray:ADDRESS")
    if find_spec(MODULES[kind]) is None:
        raise UserError(f"--on {where}: needs pip install 'ddlprof[{kind}]'")
    from joblib import parallel_config

    connected = _dask(address or None) if kind == "dask" else _ray(address or None)
    with connected, parallel_config(backend=kind, n_jobs=-1):
        yield


@contextmanager
def _dask(address: str | None) -> Iterator[None]:
    from dask.distributed import Client

    try:
        client = Client(address)
    except (OSError, ValueError) as error:
        raise UserError(f"--on dask:{address}: {error}") from None
    with client:
        yield


@contextmanager
def _ray(address: str | None) -> Iterator[None]:
    import ray
    from ray.util.joblib import register_ray

    try:
        ray.init(address=address, log_to_driver=False)
    except (ConnectionError, ValueError) as error:
        raise UserError(f"--on ray:{address}: {error}") from None
    try:
        register_ray()
        yield
    finally:
        ray.shutdown()
