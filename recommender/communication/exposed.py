"""Exposed communication of one update: the physical form. Its numbers come from `fitted` and `jobfit`.

A job has eight parameters (`PARAMETERS`), links have a bandwidth and a launch cost. The form:

    cost    = bytes / bandwidth * flows(nodes) * shared(GPUs) + tensors * launch * (1 + growth * log2(GPUs / 2))
    reduce  = cost * ring(GPUs)                              ring(n) = 2 (n - 1) / n
    exposed = max(last bucket, reduce - overlap * compute) + stragglers
    rest    = compute + offset(GPUs on the fullest node)     what sharing a host costs, or saves

`cost` has numbers of its own inside a machine and between machines. Where a network caps each flow, two nodes are
slower than four with as many GPUs: that is `flows`. Where GPUs share the PCIe lanes of their host, more of them than
the lanes serve wait for each other: that is `shared`. Step time is `rest + exposed`. Nothing here knows of instance
types or of other classes of a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

PARAMETERS = (
    "log_intra", "log_inter", "overlap", "log_last_bucket", "log_imbalance", "log_contention",
    "offset_alone", "offset_shared",
)  # fmt: skip
"""Parameters of a job on one kind of machine: how much dearer than `cost` its reductions are inside and between
machines, share of the computation they hide behind, share of them that cannot be hidden, share of the computation
lost to uneven ranks and to neighbours in the host, and what is added to the computation with one GPU on each node and
with eight (shares of the reference computation)."""
_CROWD = 3.0
"""log2 of the eight GPUs that `offset_shared` and `log_contention` are for."""
_BEND = 0.05
"""The width of the bend between hidden and exposed, in units of the reduction."""
_LEAST_REST = 0.3
"""The offset never takes away more of the computation than this leaves."""


@dataclass(frozen=True)
class Link:
    """Fitted properties of links inside machines (`shape` has one number) or between them."""

    gb_s: float
    """GB of gradients per second, before the ring factor."""
    launch_s: float
    """The cost of a launch for each parameter tensor."""
    launch_growth: float
    """What each doubling of the GPUs adds to a launch, as a share of a launch between two."""
    three_nodes: float = 0.0
    """The logarithm of what bytes cost over three nodes or more, relative to two."""
    four_nodes: float = 0.0
    """The logarithm of what bytes cost over four nodes or more, relative to three."""
    full_speed_gpus: float = 0.0
    """GPUs of one machine that its links serve at full speed; more share them. 0: any number."""


class Links(NamedTuple):
    """The links inside a machine and between machines."""

    intra: Link
    inter: Link


class Placing(NamedTuple):
    """A placement as the form needs it: numbers, or arrays of equal length."""

    gpus: Any
    nodes: Any
    most: Any
    """The GPUs on the fullest node."""


class Load(NamedTuple):
    """The computation and the bytes of an update. Numbers or arrays."""

    compute_s: Any
    """The computation of the update."""
    hiding_s: Any
    """The computation of the micro-batch that reductions can hide behind."""
    reference_s: Any
    """The computation that offsets are shares of."""
    bytes: Any
    tensors: Any


def placing_of(placement: Sequence[int]) -> Placing:
    """The counts of a placement such as (4, 4)."""
    return Placing(sum(placement), len(placement), max(placement))


def reduce_s(z: Array, links: Links, at: Placing, load: Load) -> Any:
    """The seconds of all reductions if nothing were hidden. `z` holds parameters in its last axis."""
    inside, between = _cost_s(links.intra, at, load), _cost_s(links.inter, at, load)
    ring = 2.0 * (at.gpus - 1) / at.gpus
    return ring * np.where(at.nodes == 1, inside * np.exp(z[..., 0]), between * np.exp(z[..., 1]))


def step_s(z: Array, links: Links, at: Placing, load: Load) -> tuple[Any, Any]:
    """The rest and the exposed communication of one update on more than one GPU, in seconds."""
    total = reduce_s(z, links, at, load)
    last = np.exp(z[..., 3]) * total
    bend = _BEND * total + 1e-9
    exposed = last + bend * np.logaddexp(0.0, (total - z[..., 2] * load.hiding_s - last) / bend)
    crowd = np.log2(at.most) / _CROWD
    lost = np.exp(z[..., 4]) * np.sqrt(2.0 * np.log(at.gpus)) + np.exp(z[..., 5]) * crowd
    offset = load.reference_s * (z[..., 6] + (z[..., 7] - z[..., 6]) * crowd)
    rest = np.maximum(load.compute_s + offset, _LEAST_REST * load.compute_s)
    return rest, exposed + load.compute_s * lost


def _cost_s(link: Link, at: Placing, load: Load) -> Any:
    flows = np.exp(link.three_nodes * (at.nodes >= 3) + link.four_nodes * (at.nodes >= 4))
    shared = np.maximum(at.most / link.full_speed_gpus, 1.0) if link.full_speed_gpus else 1.0
    launches = load.tensors * link.launch_s * (1.0 + link.launch_growth * np.log2(at.gpus / 2.0))
    return load.bytes / (link.gb_s * 1e9) * flows * shared + launches
