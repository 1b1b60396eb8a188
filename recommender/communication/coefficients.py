"""The fitted coefficients of communication, and the choice of those that hold for a machine.

The data are in `coefficients.json`, written by `scripts/fit/communication.py` with sources, date and cross-validated
errors.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.resources import files

from ddlprof.base.typed import decode
from ddlprof.recommender.communication.exposed import Link, Links
from ddlprof.recommender.target import Machine

BUCKET_GB = 0.025
"""The gradients in one bucket of DistributedDataParallel by default (torch's `bucket_cap_mb`), in GB."""


@dataclass(frozen=True)
class Prior:
    """The prior of a job's parameters: `mean` and `sd` in the order of `PARAMETERS`. The pairs below hold without, and
    with measurements of the job."""

    mean: tuple[float, ...]
    sd: tuple[float, ...]
    widen: tuple[float, float]
    """The factor on the standard deviations that makes intervals cover 80 %."""
    floor: tuple[float, float]
    """The standard deviation that remains when the parameters are known, as a share of the step."""
    reach: tuple[float, float] = (0.0, 0.0)
    """The standard deviation that each doubling of nodes or GPUs beyond the fitted ones adds."""


@dataclass(frozen=True)
class LinkClass:
    """The fit for links of one kind: `gb_s` at the data-sheet speed `reference`, and its growth with that speed."""

    name: str
    kind: str
    """The kind of link inside a machine (pcie, nvlink) or between machines (flow_capped, ethernet, rdma)."""
    gpu_models: tuple[str, ...]
    """The GPUs that it was fitted for; empty: all GPUs without a class of their own."""
    gb_s: float
    launch_s: float
    launch_growth: float
    hop_growth: float
    line_share: float
    flows: float
    reference: float
    """The data-sheet speed that `gb_s` holds for: GB/s of a link, Gbit/s of a network."""
    power: float
    most: int
    """The largest number of GPUs in a machine, or of nodes, that was measured."""
    full_speed_gpus: float = 0.0
    """The GPUs of one machine that its links serve at full speed; more GPUs share them. 0: any number."""
    bucket_s: float = 0.0
    """The seconds that reducing a bucket (`BUCKET_GB`) costs however fast the links are."""
    network: str = ""
    """The kind of network between the machines that the links inside were measured in."""

    def at(self, speed: float | None) -> Link:
        """The link at another data-sheet speed; as fitted where the speed is unknown."""
        slower = 1.0 if speed is None else (self.reference / speed) ** self.power
        line = self.line_share * slower
        cost = 1.0 - self.line_share + line
        gb_s = with_buckets(self.gb_s / cost, self.bucket_s)
        return Link(
            gb_s, self.launch_s, self.launch_growth, self.hop_growth, line / cost, self.flows, self.full_speed_gpus
        )


def with_buckets(gb_s: float, bucket_s: float) -> float:
    """The effective GB/s of gradients in buckets, each of which costs `bucket_s` besides the transfer of its bytes."""
    return 1.0 / (1.0 / gb_s + bucket_s / BUCKET_GB)


@dataclass(frozen=True)
class MachineLinks:
    """The coefficients that hold for one machine."""

    links: Links
    prior: Prior
    """The prior; the general one where the links were not fitted."""
    fitted_gpus: int
    fitted_nodes: int
    assumed: tuple[str, ...]
    """The assumptions made for what is not known or was not fitted."""


@dataclass(frozen=True)
class CommunicationCoefficients:
    """All fitted coefficients of communication."""

    inside: tuple[LinkClass, ...]
    between: tuple[LinkClass, ...]
    priors: dict[str, Prior]
    """The priors by kind of link inside the machine."""
    gradient_bytes: tuple[float, float]
    """The smallest and the largest gradient bytes of the jobs in the fit."""

    def of(self, machine: Machine) -> MachineLinks:
        """The coefficients for a machine; assumptions in place of unknown facts are in `assumed`.

        Outside the fitted clusters both kinds of links are uncertain: the prior is the general one, calibrated on
        clusters and publications that were left out.
        """
        assumed: list[str] = []
        kind = machine.link or "pcie"
        if machine.link is None:
            assumed.append("link between the GPUs not known: taken as PCIe")
        inside = _pick(self.inside, kind, machine.gpu_model)
        fitted = bool(inside.gpu_models)
        if not fitted:
            assumed.append(f"no measurements of {kind} between {machine.name} GPUs in the fit: taken as {inside.name}")
        between, speed = self._network(machine, assumed)
        prior, intra, inter = self.priors[inside.name], inside.at(machine.link_gb_s), between.at(speed)
        as_fitted = between.kind == inside.network and speed == between.reference
        if not (fitted and (speed is None or as_fitted)):
            prior = self.priors[kind]
            intra = _half_way(intra, _pick(self.inside, kind, "").at(machine.link_gb_s))
        return MachineLinks(
            Links(intra, _with_flows(inter, machine)),
            prior,
            inside.most if fitted else 0,
            between.most,
            tuple(assumed),
        )

    def _network(self, machine: Machine, assumed: list[str]) -> tuple[LinkClass, float | None]:
        kind = "rdma" if machine.rdma else "ethernet" if machine.flow_gbps is None else "flow_capped"
        between = _pick(self.between, kind, machine.gpu_model)
        if machine.network_gbps is None:
            assumed.append(f"network not known: taken as {between.reference:g} Gbit/s {kind}")
            return between, None
        if machine.flow_gbps is None:
            return between, machine.network_gbps
        return between, min(machine.flow_gbps, machine.network_gbps)


def _pick(classes: tuple[LinkClass, ...], kind: str, gpu_model: str) -> LinkClass:
    """The class fitted for the GPU, else the general one of the kind."""
    of_kind = [row for row in classes if row.kind == kind]
    return next((row for row in of_kind if gpu_model in row.gpu_models), of_kind[-1])


def _half_way(own: Link, general: Link) -> Link:
    """The link of a GPU in a machine that it was not measured in: the geometric mean of its own bandwidth and the
    general one. From one machine nobody can tell how much of the cost belongs to the GPU, how much to the machine."""
    return replace(own, gb_s=math.sqrt(own.gb_s * general.gb_s))


def _with_flows(link: Link, machine: Machine) -> Link:
    """The link with as many flows as the machine's network has room for."""
    if machine.flow_gbps is None or machine.network_gbps is None:
        return link
    return replace(link, flows=min(link.flows, max(machine.network_gbps / machine.flow_gbps, 1.0)))


@lru_cache(maxsize=1)
def shipped() -> CommunicationCoefficients:
    """The coefficients of the package, read once."""
    text = (files("ddlprof.recommender") / "communication" / "coefficients.json").read_text("utf-8")
    return decode(CommunicationCoefficients, json.loads(text))
