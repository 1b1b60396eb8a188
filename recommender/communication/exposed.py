"""The formula for exposed communication of one update, with the numbers of `coefficients` and `job_parameters`.

The ring factor is that of a ring all-reduce (Patarasuk and Yuan, 2009).

A job has nine parameters (`PARAMETERS`); links have a bandwidth and a launch cost. The formula:

    cost    = bytes / bandwidth * flows(nodes) * shared(GPUs) + tensors * launch * growth(GPUs)
    reduce  = (inside^4 + between^4)^(1/4) * ring(GPUs)      ring(n) = 2 (n - 1) / n; the costs of both kinds of links
    exposed = max(last bucket, reduce - overlap * compute) + stragglers
    rest    = compute + offset(GPUs on the fullest node)     what sharing a host costs, or saves

`cost` has coefficients for links inside a machine and others for links between machines; a reduction over several
machines with several GPUs each passes both. `growth` is 1 + launch_growth log2(GPUs / 2) + hop_growth (nodes / 2 - 1).
`flows`: where a network caps each flow, two nodes are slower than four with as many GPUs. `shared`: GPUs that share the
PCIe lanes of their host wait for each other if they are more than the lanes serve. Step time is `rest + exposed`.
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
    "offset_alone", "offset_shared", "log_full",
)  # fmt: skip
"""The parameters of a job on one kind of machine: factors on the cost of reductions inside (intra) and between machines
(inter), share of the computation that hides reductions, share of the reductions that cannot be hidden (last bucket),
share of the computation lost to uneven ranks (imbalance) and to neighbours in the host (contention), and the time added
to the computation with one GPU on each node and with eight (shares of the reference computation), and a further factor
on the cost inside machines of which eight GPUs take part (full). Names with log_ are logarithms."""
_CROWD = 3.0
"""log2 of eight: the number of GPUs on a node that `offset_shared`, `log_contention` and `log_full` are defined for."""
_NORM = 4.0
"""How the times of the links inside and between machines, which every byte passes at once, become one: the longer one,
and a fifth more where they are equal."""
_BEND = 0.05
"""The width of the smooth transition between hidden and exposed, as a share of the reduction."""
_LEAST_REST = 0.3
"""The least share of the computation that remains, however negative the offset."""


@dataclass(frozen=True)
class Link:
    """Fitted properties of links inside machines (`shape` has one number) or between them."""

    gb_s: float
    """GB of gradients per second, before the ring factor 2 (n - 1) / n."""
    launch_s: float
    """The cost of a launch for each parameter tensor."""
    launch_growth: float
    """The growth of the launch cost with each doubling of GPUs, as a share of the launch between two."""
    hop_growth: float = 0.0
    """The growth of the launch cost with each further pair of nodes in the ring, as a share of the launch between two:
    over TCP every hop costs its latency."""
    line_share: float = 1.0
    """The share of the cost of bytes that is due to the line, or to a flow that the network caps; the rest is the
    machine's."""
    flows: float = 1.0
    """How many times the line serves three nodes or more: each has two neighbours instead of one, so twice the flows.
    """
    full_speed_gpus: float = 0.0
    """The GPUs of one machine that its links serve at full speed; more GPUs share them. 0: any number."""


class Links(NamedTuple):
    """The links inside a machine and between machines."""

    intra: Link
    inter: Link


class Placing(NamedTuple):
    """A placement as the formula needs it: numbers, or arrays of equal length."""

    gpus: Any
    nodes: Any
    most: Any
    """The GPUs on the fullest node."""


class Load(NamedTuple):
    """The computation and the bytes of an update. Numbers or arrays."""

    compute_s: Any
    """Seconds of computation of the update."""
    hiding_s: Any
    """Seconds of computation of the micro-batch behind which reductions can hide."""
    reference_s: Any
    """Seconds of computation that the offsets are shares of."""
    bytes: Any
    tensors: Any


def placing_of(placement: Sequence[int]) -> Placing:
    """The `Placing` of a placement such as (4, 4)."""
    return Placing(sum(placement), len(placement), max(placement))


def reduce_s(z: Array, links: Links, at: Placing, load: Load) -> Any:
    """The seconds of all reductions if nothing were hidden. The last axis of `z` holds the `PARAMETERS`."""
    inside, between = _cost_s(links.intra, at, load), _cost_s(links.inter, at, load)
    ring = 2.0 * (at.gpus - 1) / at.gpus
    inside = inside * np.exp(z[..., 0] + z[..., 8] * np.log2(at.most) / _CROWD) * (at.most > 1)
    between = between * np.exp(z[..., 1]) * (at.nodes > 1)
    return ring * (inside**_NORM + between**_NORM) ** (1.0 / _NORM)


def step_s(z: Array, links: Links, at: Placing, load: Load) -> tuple[Any, Any]:
    """The rest and the exposed communication of one update on more than one GPU, in seconds; `z` as in `reduce_s`."""
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
    flows = 1.0 - link.line_share * (1.0 - 1.0 / link.flows) * (at.nodes >= 3)
    shared = np.maximum(at.most / link.full_speed_gpus, 1.0) if link.full_speed_gpus else 1.0
    growth = link.launch_growth * np.log2(at.gpus / 2.0) + link.hop_growth * (at.nodes / 2.0 - 1.0)
    launches = load.tensors * link.launch_s * (1.0 + growth)
    return load.bytes / (link.gb_s * 1e9) * flows * shared + launches
