"""The facts of the catalogue as flat, frozen records. Their docstrings are the dictionary of the CSV columns.

Fields are checked when a record is made: `CatalogError` names the field and what is expected.

None means not known, everywhere; 0 is a known zero. Dates are ISO dates, or empty where a source has none.
`source` holds names of `data/sources.csv`, separated by ";", or says itself where a fact comes from.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import Annotated, ClassVar, NamedTuple

from ddlprof.base.errors import ReadingError
from ddlprof.base.typed import NOT_NEGATIVE, POSITIVE, SHARE, Interval, settle, shown
from ddlprof.instance_catalog.errors import CatalogError

# Numbers without a range of their own are 0 or more, see `_Checked`.
Speed = Annotated[float, POSITIVE]
PcieGeneration = Annotated[int, Interval(1, 6)]
PRICINGS = ("on_demand", "spot")
OWN_PRICE = "own"
"""The basis of a user's own price."""
MARKET_PRICE = "market"
"""The basis of what hosts of a market asked on a day; others ask more or less, and it moves by the hour."""


class _Checked:
    def __post_init__(self) -> None:
        try:
            settle(self, NOT_NEGATIVE)
        except ReadingError as error:
            raise CatalogError(str(error)) from None


class LinkPair(NamedTuple):
    """How many NVLinks join two GPUs of a machine. Pairs that are not listed have none and talk over PCIe."""

    gpu_a: int
    gpu_b: int
    links: int


@dataclass(frozen=True)
class InstanceType(_Checked):
    """One machine that can (or could) be rented."""

    DERIVED: ClassVar[tuple[str, ...]] = (
        "flow_gbps",
        "flow_placement_group_gbps",
        "flow_ena_express_gbps",
        "link_pairs",
    )
    """Fields without a CSV column: they follow from other tables."""

    cloud: str
    """The cloud's name in lower case: aws, gcp, azure, ..."""
    instance_type: str
    """Name at the cloud; GCP's N1 machines with GPUs attached are named `n1-standard-32+4xt4` here, and GPUs of
    clouds without types `8x_H100-SXM_SECURE` (RunPod) and `1x-H100_SXM` (Vast)."""
    family: str
    gpu_model: str
    """Key of `Gpu`."""
    gpus: int
    """The number of whole GPUs; 0 where the type has a fraction of one."""
    gpu_fraction: Annotated[float, SHARE]
    """1.0, or the share of one GPU that a fractional type has."""
    gpu_memory_gib: Speed | None = None
    """Nominal memory of one GPU, or of the share of it."""
    vcpus: int | None = None
    memory_gib: float | None = None
    cpu_arch: str | None = None
    cpu_model: str | None = None
    interconnect: str | None = None
    """The link between the GPUs: none (one GPU), pcie3..5, nvlink2..5, nvlink3-bridge, nvlink4-bridge (pairs), xgmi
    (AMD's Infinity Fabric)."""
    interconnect_gb_s: Speed | None = None
    """Theoretical GB/s of one GPU in one direction: a ceiling, without contention or protocol overhead."""
    interconnect_basis: str | None = None
    nvswitch: bool | None = None
    pcie_gen: PcieGeneration | None = None
    """PCIe generation between a GPU and the host: the older of the GPU's and the CPU's."""
    pcie_lanes: int | None = None
    pcie_basis: str | None = None
    """Whether generation and lanes were measured or assumed."""
    network_gbps: Speed | None = None
    """Gbit/s the machine sustains, all flows and network cards together."""
    network_burst_gbps: Speed | None = None
    """The figure of "up to N Gigabit"; equal to `network_gbps` where the machine sustains it."""
    network_cards: int | None = None
    efa: bool | None = None
    efa_interfaces: int | None = None
    ena_express: bool | None = None
    """Whether ENA Express (AWS) is there: single flows over SRD, faster than over plain TCP."""
    rdma_gbps: Speed | None = None
    """Gbit/s of the machine's InfiniBand (Azure), beside `network_gbps`."""
    local_storage_gib: float | None = None
    ebs_gbps: Speed | None = None
    """Sustained Gbit/s to network storage."""
    ebs_burst_gbps: Speed | None = None
    offered: bool | None = None
    """False for a retired type, whose prices may still be in the clouds' lists."""
    offered_regions: tuple[str, ...] = ()
    """Regions in which the type was on offer. Other regions may not have been looked at."""
    spec_as_of: str = ""
    """The ISO date of the facts, or empty."""
    source: str = ""
    notes: str = ""
    flow_gbps: Speed | None = None
    """Gbit/s of one TCP flow to another machine, not in a placement group. From `FlowLimit`."""
    flow_placement_group_gbps: Speed | None = None
    """The same between machines of one cluster placement group."""
    flow_ena_express_gbps: Speed | None = None
    """The same with ENA Express, where the type has it."""
    link_pairs: tuple[LinkPair, ...] = ()
    """NVLinks between pairs of GPUs, where they are not the same for all pairs. From `gpu_links.csv`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_date("spec_as_of", self.spec_as_of)


@dataclass(frozen=True)
class Gpu(_Checked):
    """One GPU as a machine counts it: a die of a K80, M60 or K520 board, else a card. Peaks are dense (no sparsity)."""

    gpu_model: str
    aliases: tuple[str, ...] = ()
    """Other names, which the comparison in `names` would not find."""
    architecture: str | None = None
    compute_capability: str | None = None
    memory_gib: float | None = None
    """The nominal memory in GiB."""
    shown_gib: float | None = None
    """What CUDA shows of it to a process (GiB), the least of several published figures; None: not known."""
    memory_type: str | None = None
    memory_bandwidth_gb_s: Speed | None = None
    fp32_tflops: Speed | None = None
    tf32_tflops: Speed | None = None
    fp16_tensor_tflops: Speed | None = None
    """Peak with FP32 accumulation."""
    bf16_tflops: Speed | None = None
    fp16_tflops: Speed | None = None
    """Peak without tensor cores."""
    nvlink_gen: int | None = None
    nvlink_gb_s: Speed | None = None
    """GB/s of all its NVLinks together, one direction."""
    pcie_gen: PcieGeneration | None = None
    pcie_lanes: int | None = None
    tdp_w: Speed | None = None
    sm_count: int | None = None
    fp32_cores: int | None = None
    boost_mhz: int | None = None
    form_factor: str | None = None
    confidence: str = ""
    """How sure the facts are: high (two sources), medium, low, or recalled (the vendor's figure from memory)."""
    source: str = ""
    notes: str = ""


@dataclass(frozen=True)
class Price(_Checked):
    """What one machine costs: Linux, shared tenancy, no savings plans or reservations."""

    DERIVED: ClassVar[tuple[str, ...]] = ("list_usd_per_hour",)

    cloud: str
    region: str
    instance_type: str
    pricing: str
    """The way to pay: on_demand or spot."""
    usd_per_hour: float
    """Above 0, except for machines that are already paid for."""
    as_of: str = ""
    """The ISO date of the price, or empty where the source has none."""
    basis: str = ""
    """Basis: api | read | read_undated | read_old (2017) | market | parity (taken equal to us-east-1) | derived |
    recalled, or own: a user's; a discount follows: `read, less 30 %`."""
    source: str = ""
    list_usd_per_hour: float | None = None
    """The list price, if this price is a user's own or discounted."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_date("as_of", self.as_of)
        if self.pricing not in PRICINGS:
            raise CatalogError(f"pricing: one of {', '.join(PRICINGS)} is expected, not {shown(self.pricing)}")
        if not self.usd_per_hour and not (self.own or self.discounted):
            raise CatalogError("usd_per_hour: a positive number is expected, not 0.0")

    @property
    def assumed(self) -> bool:
        """Whether the price was not read anywhere."""
        return is_assumed(self.basis)

    @property
    def own(self) -> bool:
        """Whether it is what a user pays, whatever the cloud's list says."""
        return self.basis == OWN_PRICE

    @property
    def discounted(self) -> bool:
        """Whether a user's discount is included."""
        return ", less " in self.basis


def is_assumed(basis: str) -> bool:
    """Whether prices of this basis were not read anywhere."""
    return basis.partition(",")[0] in ("parity", "derived", "recalled")


@dataclass(frozen=True)
class FlowLimit(_Checked):
    """The bandwidth that a cloud allows one flow between two machines."""

    cloud: str
    transport: str
    """The transport: tcp, ena_express or efa."""
    placement_group: bool
    """Whether both machines are in one cluster placement group."""
    source: str
    gbps: Speed | None = None
    """The limit; None where none is documented."""
    notes: str = ""


@dataclass(frozen=True)
class LinkFact(_Checked):
    """A measured fact about a machine or its links, from a user's run. It counts before the tables."""

    machine: str
    """The instance type or the host name."""
    what: str
    """flow_gbps, flow_placement_group_gbps and network_gbps replace the field of that name of the instance type; other
    names, such as allreduce_intra_gb_s, stand beside it."""
    value: Speed
    unit: str
    """The unit: Gbit/s, GB/s, ..."""
    measured_at: str
    """The ISO date or time of the measurement."""
    source: str
    """The run that the fact comes from."""
    notes: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_date("measured_at", self.measured_at)
        for ending, unit in (("_gbps", "Gbit/s"), ("_gb_s", "GB/s")):
            if self.what.endswith(ending) and self.unit != unit:
                raise CatalogError(f"unit of {self.what}: {unit} is expected, not {shown(self.unit)}")


PRECISIONS = ("fp32", "tf32", "bf16", "fp16", "fp8")
"""The precisions of products that are measured."""


@dataclass(frozen=True)
class Reached(_Checked):
    """What operators reached on one type of GPU when it was measured, sustained rather than in a burst.

    Replaces learned efficiencies. None: not measured.
    """

    gpu_model: str
    fp32_tflops: Speed | None = None
    """1e12 operations a second of a large product of fp32 matrices without TF32; a multiply-add counts as two."""
    tf32_tflops: Speed | None = None
    """The same with TF32; the following ones with operands of their type."""
    bf16_tflops: Speed | None = None
    fp16_tflops: Speed | None = None
    fp8_tflops: Speed | None = None
    memory_gb_s: Speed | None = None
    """1e9 bytes a second that a large elementwise operator reads and writes."""
    launch_us: Speed | None = None
    """Microseconds from one small operator to the next in the forward pass of a model, where the host does nothing
    else: its dispatch in PyTorch, by modules and with autograd."""
    measured_at: str = ""
    """The ISO date or time of the measurement, or empty."""
    source: str = ""
    instance_type: str = ""
    """The type of the machine that it was measured on, or empty."""
    clock_mhz: Speed | None = None
    """The mean clock of the multiprocessors while products ran."""
    power_w: Speed | None = None
    """The mean power while products ran."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_date("measured_at", self.measured_at)

    def tflops(self) -> dict[str, float]:
        """What products reached, by precision, in 1e12 operations a second."""
        named = {name: getattr(self, f"{name}_tflops") for name in PRECISIONS}
        return {name: value for name, value in named.items() if value is not None}


@dataclass(frozen=True)
class GpuLink(_Checked):
    """A row of `gpu_links.csv`: one `LinkPair` of one instance type."""

    cloud: str
    instance_type: str
    gpu_a: int
    gpu_b: int
    links: int
    source: str


@dataclass(frozen=True)
class Source(_Checked):
    """A place where facts were read."""

    source: str
    """The name used in the `source` columns."""
    what: str
    location: str
    as_of: str = ""
    licence: str = ""
    notes: str = ""


@dataclass(frozen=True)
class Disagreement(_Checked):
    """Two sources that disagree, and what the catalogue says."""

    subject: str
    """The instance type or GPU."""
    field: str
    kept: str
    kept_source: str
    other: str
    other_source: str
    reason: str = ""


def _check_date(name: str, text: str) -> None:
    """Dates are compared as text, so they must be written in one form only."""
    try:
        right = not text or date.fromisoformat(text[:10]).isoformat() == text[:10]
    except ValueError:
        right = False
    if not right:
        raise CatalogError(f"{name}: an ISO date such as 2026-08-31 is expected, not {shown(text)}")
