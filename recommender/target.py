"""The placement to predict, and the machine under it: from the catalogue, or from a description by hand."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated

from ddlprof import instance_catalog
from ddlprof.base.reading import Interval
from ddlprof.instance_catalog import Catalog, Gpu, InstanceType
from ddlprof.model.operators import Checkpointing
from ddlprof.recommender.errors import Checked, PredictionError
from ddlprof.recommender.layout import Layout
from ddlprof.recommender.strategy import strategy_named
from ddlprof.recommender.workload import Batch, Measurement, Name, Placement, Speed

Rank = Annotated[int, Interval(1, 65_536)]
"""The rank of adapters."""
LaunchUs = Annotated[float, Interval(0.1, 100_000)]
"""Microseconds that a host takes to launch an operator."""
RDMA_FROM_GBPS = 100.0
"""A machine described by hand with at least this network (Gbit/s) is assumed to have RDMA (InfiniBand or the like), as
all published clusters with such networks have."""

DIRECT_FROM_GBPS = 800.0
"""A machine of the catalogue with NVLink and at least this network (Gbit/s) reaches GPU memory past its processor, by
RDMA or by what its cloud has in place of it (GPUDirect-TCPX of GCP)."""

_LINK_GB_S = {
    "pcie1": 4.0, "pcie2": 8.0, "pcie3": 15.75, "pcie4": 31.5, "pcie5": 63.0, "pcie6": 126.0,
    "nvlink1": 80.0, "nvlink2": 150.0, "nvlink3": 300.0, "nvlink4": 450.0, "nvlink5": 900.0, "nvlink6": 1800.0,
}  # fmt: skip
"""GB/s of one GPU in one direction over 16 lanes, or over all its NVLinks, by the vendor."""

_MESH_LINKS = 7
"""The links of one of AMD's modules, each to another of the eight in a machine."""


@dataclass(frozen=True)
class Target(Checked):
    """A placement of the job, on an instance type of the catalogue or on a machine described by `gpu_model`,
    `interconnect` and `network_gbps`."""

    instance_type: Name | None = None
    placement: Placement = (1,)
    """GPUs used on each node: (4,) is four in one machine, (2, 2) two in each of two."""
    batch_per_gpu: Batch = 1
    """The samples of one GPU in one forward pass."""
    precision: Name | None = None
    """This and the other settings of the training are as in `ddlprof.recommender.Settings`; None: as measured."""
    strategy: Name | None = None
    grad_accum: Batch | None = None
    gpu_model: Name | None = None
    interconnect: Name | None = None
    """The link between the GPUs of a machine: pcie3..5, nvlink1..5 or xgmi (AMD's Infinity Fabric, at the speed of the
    GPU's data sheet), in any spelling that names one of them."""
    network_gbps: Speed | None = None
    """The Gbit/s between two machines."""
    optimizer: Name | None = None
    checkpointing: Checkpointing | None = None
    compiled: bool | None = None
    channels_last: bool | None = None
    lora: Rank | None = None
    qlora: Rank | None = None
    lora_targets: Name | None = None
    lora_precision: Name | None = None
    qlora_format: Name | None = None
    lora_dropout: bool | None = None
    host_launch_us: LaunchUs | None = None
    """Microseconds from one small operator to the next that the host takes in forward (`launch_us` of `ddlprof probe`);
    None: as a probe tells it, or typical of the machine's processor."""
    layout: Layout | None = None
    """How the model is divided over the GPUs; None: by `strategy` alone. With a layout, it decides in place of
    `strategy` and `checkpointing`; `batch_per_gpu` are the sequences of a micro-batch, and `grad_accum` the
    micro-batches of a step in each data rank."""

    @property
    def deepspeed(self) -> int | None:
        """The stage of ZeRO by which DeepSpeed divides the job."""
        return strategy_named(self.strategy or "").deepspeed


@dataclass(frozen=True)
class Machine:
    """One node, as the predictor needs it. None: not known, or the machine has none."""

    name: str
    gpu: Gpu | None
    """The GPU; None for a CPU."""
    gpus: int | None
    link: str | None
    """The kind of link between the GPUs of the machine: pcie or nvlink, which stands for AMD's Infinity Fabric, too."""
    link_gb_s: float | None
    """GB/s of one GPU in one direction, by the data sheet."""
    network_gbps: float | None
    flow_gbps: float | None
    """The largest Gbit/s of one flow (TCP connection) between two machines; None: no cap."""
    rdma: bool
    vcpus: int | None
    storage_gb_s: float | None
    cpu_model: str | None = None

    @property
    def gpu_model(self) -> str:
        """The GPU's name in the catalogue, or cpu."""
        return self.gpu.gpu_model if self.gpu else "cpu"

    @property
    def kind(self) -> tuple[str, str | None]:
        """The GPU and its link: machines of one kind share their measurements."""
        return self.gpu_model, self.link


@lru_cache(maxsize=1)
def default_catalog() -> Catalog:
    """The embedded catalogue with the user's overlay, read once."""
    return instance_catalog.load()


def machine_of(place: Target | Measurement, catalog: Catalog) -> Machine:
    """The machine of the catalogue, or one built from the description. Raises `CatalogError` for an unknown name."""
    if place.instance_type is not None:
        return _in_mesh(machine_from_type(catalog.instance(place.instance_type), catalog), place.placement)
    gpu = catalog.gpu(place.gpu_model) if place.gpu_model is not None else None
    link, link_gb_s = _link_of_text(place.interconnect, gpu) if place.interconnect else _link_of_gpu(gpu)
    machine = Machine(
        name=gpu.gpu_model if gpu else "CPU",
        gpu=gpu,
        gpus=None,
        link=link,
        link_gb_s=link_gb_s,
        network_gbps=place.network_gbps,
        flow_gbps=None,
        rdma=(place.network_gbps or 0.0) >= RDMA_FROM_GBPS,
        vcpus=None,
        storage_gb_s=None,
    )
    return _in_mesh(machine, place.placement)


class Machines:
    """Makes the machine of a place, as `machine_of` does, once for all places with the same one."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._made: dict[tuple[object, ...], Machine] = {}

    def of(self, place: Target | Measurement) -> Machine:
        """The machine. Raises `CatalogError` for an unknown name."""
        used = max(place.placement, default=1)  # the links between AMD's modules depend on it
        key = (place.instance_type, place.gpu_model, place.interconnect, place.network_gbps, used)
        if key not in self._made:
            self._made[key] = machine_of(place, self._catalog)
        return self._made[key]


def machine_from_type(instance: InstanceType, catalog: Catalog) -> Machine:
    """The machine of an instance type. Raises `PredictionError` for a fraction of a GPU: nothing was fitted for it."""
    if not instance.gpus:
        raise PredictionError(
            f"{instance.instance_type}: a fraction of a GPU ({instance.gpu_fraction:g} of one {instance.gpu_model})"
            " cannot be predicted; choose a type with whole GPUs"
        )
    gpu = catalog.gpu(instance.gpu_model)
    link, link_gb_s = _link_of_text(instance.interconnect, gpu) if instance.interconnect else (None, None)
    # EFA reads GPU memory directly on NVLink machines only; jobs on the others were measured over TCP.
    efa = bool(instance.efa) and link == "nvlink" and (instance.network_gbps or 0.0) >= RDMA_FROM_GBPS
    direct = link == "nvlink" and (instance.network_gbps or 0.0) >= DIRECT_FROM_GBPS
    rdma = efa or direct or instance.rdma_gbps is not None
    if link is None:
        link, link_gb_s = "pcie", _pcie_gb_s(instance, gpu)
    return Machine(
        name=instance.instance_type,
        gpu=gpu,
        gpus=instance.gpus,
        link=link,
        link_gb_s=instance.interconnect_gb_s or link_gb_s,
        network_gbps=instance.rdma_gbps or instance.network_gbps,
        flow_gbps=None if rdma else instance.flow_placement_group_gbps or instance.flow_gbps,
        rdma=rdma,
        vcpus=instance.vcpus,
        storage_gb_s=None if instance.ebs_gbps is None else instance.ebs_gbps / 8,
        cpu_model=instance.cpu_model,
    )


def check_target(target: Target, machine: Machine) -> None:
    """Raises `PredictionError` if the placement uses more GPUs than the machine has."""
    placement = target.placement
    if machine.gpus is not None and max(placement) > machine.gpus:
        has = f"{machine.gpus} GPU" + ("s" if machine.gpus > 1 else "")
        raise PredictionError(f"placement {format_placement(placement)}: a {machine.name} has {has}")


def format_placement(placement: tuple[int, ...]) -> str:
    """The placement as on the command line: `4,4`."""
    return ",".join(str(gpus) for gpus in placement) or "(none)"


def _link_of_text(text: str, gpu: Gpu | None = None) -> tuple[str | None, float | None]:
    """The kind and the GB/s of a link described as `nvlink3`, `NVLink3/NVSwitch`, `PCIe 4.0` or `PCIe3 (no NVLink)`.

    `xgmi` and `Infinity Fabric` are what NVLink is, at the speed of the GPU's data sheet.
    """
    if re.search(r"xgmi|infinity[ _-]?fabric", text.lower()):
        return "nvlink", gpu.nvlink_gb_s if gpu else None
    named = re.search(r"(pcie|nvlink)\D{0,6}([1-6])?", text.lower())
    if named is None:
        return None, None
    kind, generation = named.group(1), named.group(2) or "3"
    return kind, _LINK_GB_S.get(kind + generation)


def _link_of_gpu(gpu: Gpu | None) -> tuple[str | None, float | None]:
    """The link of the usual machine around a GPU: NVLink for SXM modules and superchips, Infinity Fabric for AMD's
    modules (OAM), PCIe for cards."""
    if gpu is None:
        return None, None
    if gpu.nvlink_gb_s and any(form in (gpu.form_factor or "") for form in ("SXM", "superchip", "OAM")):
        return "nvlink", gpu.nvlink_gb_s
    return "pcie", _LINK_GB_S[f"pcie{gpu.pcie_gen or 3}"]


def _in_mesh(machine: Machine, placement: Placement) -> Machine:
    """The machine with the links that the GPUs in use have to one another. Modules of AMD have one link to each of
    seven others and no switch, so that two of them share one link."""
    gpu, used = machine.gpu, max(placement, default=1)
    if gpu is None or gpu.form_factor != "OAM" or machine.link != "nvlink" or machine.link_gb_s is None:
        return machine
    links = min(max(used - 1, 1), _MESH_LINKS)
    return replace(machine, link_gb_s=machine.link_gb_s * links / _MESH_LINKS)


def _pcie_gb_s(instance: InstanceType, gpu: Gpu) -> float:
    """The GB/s of a GPU's PCIe link, by generation and lanes."""
    generation = instance.pcie_gen or gpu.pcie_gen or 3
    return _LINK_GB_S[f"pcie{generation}"] * (instance.pcie_lanes or 16) / 16
