"""Where the ranks of a dimension sit, and what a collective among them takes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from ddlprof.recommender.target import Machine

LARGE_DOMAINS = {"GB200": 72, "GB300": 72}
"""GPUs in one NVLink domain that spans machines, by GPU: NVIDIA's NVL72 racks."""
_PASSES = {"all_reduce": 2.0}
"""How often a collective sends its bytes around; 1 for the others."""


class CollectiveCost(NamedTuple):
    """Coefficients of one kind of collective over NVLink: seconds = a + b + mix * sqrt(a * b), where a is the lead and
    b the bytes over what the links reach. Fitted to aiconfigurator's table of collectives."""

    lead_s: float
    growth: float
    """The growth of the lead with each doubling beyond two ranks, as a share."""
    efficiency: float
    """The share of the links' data sheet that large messages reach."""
    mix: float
    """How much slower messages of middling size are."""


class DimensionGroup(NamedTuple):
    """The ranks of one dimension: how many, in how many NVLink domains, and how many of them share a domain."""

    ranks: int
    domains: int
    inside: int


class Fabric(NamedTuple):
    """The links around one GPU."""

    domain: int
    """GPUs that NVLink connects."""
    link_gb_s: float
    """GB/s of one GPU inside the domain, in one direction."""
    network_gb_s: float
    """GB/s of one GPU's share of its machine's network."""


def fabric_of(machine: Machine, gpus_per_node: int) -> Fabric:
    """The links of a machine with that many GPUs in use; a network that is not known is taken as 50 GB/s a GPU with
    NVLink, as in machines built for training, and 25 Gbit/s for the machine without."""
    gpu = machine.gpu_model
    domain = next((size for name, size in LARGE_DOMAINS.items() if gpu.startswith(name)), gpus_per_node)
    network_gb_s = machine.network_gbps / 8.0 / gpus_per_node if machine.network_gbps else 0.0
    if not network_gb_s:
        network_gb_s = 50.0 if machine.link == "nvlink" else 25.0 / 8.0 / gpus_per_node
    return Fabric(domain, machine.link_gb_s or 16.0, network_gb_s)


def group(ranks: int, stride: int, domain: int) -> DimensionGroup:
    """The group of every `stride`-th rank, where ranks fill one domain after another."""
    inside = min(max(domain // stride, 1), ranks)
    return DimensionGroup(ranks, math.ceil(ranks / inside), inside)


def collective_s(
    kind: str,
    size: float,
    at: DimensionGroup,
    fabric: Fabric,
    fitted: Mapping[str, CollectiveCost],
    share: float,
    hop_s: float,
) -> float:
    """Seconds of a collective of `size` bytes: the whole tensor, or what one rank sends in an all-to-all.

    Rings over several domains use the network of every rank that a domain has in the group, at `share` of its data
    sheet; `hop_s` is the latency of a message between domains.
    """
    if at.ranks == 1 or not size:
        return 0.0
    passes, of = _PASSES.get(kind, 1.0), fitted[kind]
    lead_s = of.lead_s * (1.0 + of.growth * math.log2(at.ranks / 2.0))
    moved = passes * size * (at.ranks - 1) / at.ranks
    wire_s = moved / (of.efficiency * fabric.link_gb_s * 1e9) if at.inside > 1 else 0.0
    if at.domains > 1:
        # An all-reduce goes up and down a tree; the others go around a ring.
        lead_s += hop_s * (2.0 * math.log2(at.domains) if kind == "all_reduce" else at.domains - 1)
        if kind == "all_to_all":
            outside = size * (at.ranks - at.inside) / at.ranks
            network_s = outside / (share * fabric.network_gb_s * 1e9)
        else:
            network_s = moved / (share * fabric.network_gb_s * 1e9 * at.inside)
        wire_s = max(wire_s, network_s)
    return lead_s + wire_s + of.mix * math.sqrt(lead_s * wire_s)


def send_s(size: float, crosses: bool, fabric: Fabric, share: float, hop_s: float) -> float:
    """Seconds of a message from one rank to the next stage's."""
    speed = share * (fabric.network_gb_s if crosses else fabric.link_gb_s)
    return hop_s + size / (speed * 1e9)
