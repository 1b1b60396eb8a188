"""Counters that tell a sick machine: what each counts, from which rate on it counts, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ddlprof.model.annotations import Shared, SharedAs

EVERY_S = 10.0
"""The time between two readings of all counters. Only values that changed are written."""


@dataclass(frozen=True, slots=True)
class HealthReading:
    """One counter of the machine or of the rank's device, written when it is first read and when it has changed."""

    time_ns: Shared[int]
    """The time of the reading, relative to the rank's origin."""
    counter: Annotated[str, SharedAs("counter")]
    """A name of `COUNTERS`."""
    where: Annotated[str, SharedAs("port")]
    """The interface or port that it is of, or the number of an Xid error; empty if there is one only."""
    value: Shared[int]


@dataclass(frozen=True)
class HealthCounter:
    """One kind of counter."""

    name: str
    words: str
    """What it counts, for people."""
    least_per_s: float
    """The rate from which on it may explain late steps; 0: a single one may."""
    action: str
    of_device: bool = False
    """Whether it is of the rank's device, not of the machine."""
    of_network: bool = False
    """Whether it is of the network between machines."""
    is_level: bool = False
    """Whether the value is a state, good while it is 0, and not a number that grows."""


_MEMORY = "give the machine more memory, or less work: swapping stops whoever it hits"
_NEIGHBOURS = "ask for a machine without neighbours, or another one"
_DISK = "see what writes to or reads from that machine's disks, and whether a disk is failing"
_QUOTA = "raise the container's limit of processors, or start fewer threads in it"
_COOLING = "see to the cooling of that machine"
_MODULE = "have the memory module replaced, and the machine taken out until then"
_CABLE = "check that machine's cables, ports and drivers, and take it out until then"
_GPU = "have the GPU reset or replaced, and the machine taken out until then"
_SLOT = "have the GPU's slot and riser checked: its link has errors, or fewer lanes than it could have"

COUNTERS = {
    each.name: each
    for each in (
        HealthCounter("swap_pages", "pages swapped in or out", 10, _MEMORY),
        HealthCounter("steal_ms", "ms stolen by other virtual machines", 20, _NEIGHBOURS),
        HealthCounter("io_stall_ms", "ms in which all that could run waited for disks", 50, _DISK),
        HealthCounter("cpu_quota_ms", "ms held back by the container's limit of processors", 50, _QUOTA),
        HealthCounter("cpu_hot", "slow-downs of processors by heat", 0, _COOLING),
        HealthCounter("memory_corrected", "corrected memory errors", 0, _MODULE),
        HealthCounter("memory_uncorrected", "uncorrected memory errors", 0, _MODULE),
        HealthCounter("tcp_retransmits", "TCP segments sent again", 5, _CABLE, of_network=True),
        HealthCounter("network_dropped", "packets dropped by the network interface", 1, _CABLE, of_network=True),
        HealthCounter("network_errors", "errors of the network interface", 0, _CABLE, of_network=True),
        HealthCounter("infiniband_errors", "errors of the InfiniBand port", 0, _CABLE, of_network=True),
        HealthCounter("gpu_ecc_corrected", "corrected errors of the GPU's memory", 0, _GPU, of_device=True),
        HealthCounter("gpu_ecc_uncorrected", "uncorrected errors of the GPU's memory", 0, _GPU, of_device=True),
        HealthCounter("gpu_remapped_rows", "rows of the GPU's memory taken out of use", 0, _GPU, of_device=True),
        HealthCounter("gpu_xid", "Xid errors of the driver", 0, _GPU, of_device=True),
        HealthCounter("nvlink_errors", "errors of NVLink", 0, _GPU, of_device=True),
        HealthCounter("pcie_replays", "transfers that PCIe repeated", 1, _SLOT, of_device=True),
        HealthCounter("pcie_lanes_missing", "lanes of PCIe missing", 0, _SLOT, of_device=True, is_level=True),
    )
}
"""All counters by name. The rates are judgements: a tenth of what would explain a hundredth of a step."""
