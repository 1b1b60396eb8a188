"""What the environment says of this process before there is a process group: its rank, its machine and its launcher.

The rank is a hint, no more: it keeps all ranks but one from choosing a run directory. The process group tells the
truth.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

_RANK = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK")
"""Those of torch's launcher, Slurm's srun, Open MPI, PMIx, MPICH and Intel MPI, and MVAPICH: the first set counts."""
_LOCAL_RANK = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")


def rank() -> int:
    """The rank of this process; 0 where nothing tells."""
    return _first(_RANK)


def local_rank() -> int:
    """The rank among the processes of this machine."""
    return _first(_LOCAL_RANK)


def world_size() -> int:
    """The world size, from torch's variable only: a scheduler's number of tasks need not be that of this job."""
    return max(1, _first(("WORLD_SIZE",), 1))


def _first(names: tuple[str, ...], default: int = 0) -> int:
    for name in names:
        if (text := os.environ.get(name, "")).isdecimal():
            return int(text)
    return default


_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_NETWORK_NAMESPACE = Path("/proc/self/ns/net")


def node_identity() -> str:
    """Equal for processes that reach each other without a network, different otherwise.

    `NCCL_HOSTID`, or host name and boot id, with the network namespace: containers of one host that do not share
    a network stack talk over a network. Where there is no /proc, the host name alone. The identity is compared among
    live ranks and means nothing elsewhere. It is built neither from ranks that a launcher numbers (wrong by hand or by
    scheduler) nor from the machine id (equal on cloned images).
    """
    host = os.environ.get("NCCL_HOSTID") or "/".join(filter(None, (socket.gethostname(), _boot_id())))
    return "/".join(filter(None, (host, _network_namespace())))


def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _network_namespace() -> str:
    try:
        return f"net:{_NETWORK_NAMESPACE.stat().st_ino}"
    except OSError:
        return ""


@dataclass(frozen=True)
class ElasticLaunch:
    """How torch's elastic launcher started this process; the defaults: it did not."""

    run_id: str | None = None
    """The id of the rendezvous: the same on all machines of the job."""
    launcher: str = ""
    """The id of one process on one machine; a restart has the same."""
    restarts: int = 0
    """As this launcher counts: not when machines come or go, and one that came later counts from 0."""

    @classmethod
    def from_environment(cls) -> ElasticLaunch:
        """The start of this process."""
        if "TORCHELASTIC_RUN_ID" not in os.environ:
            return cls()
        parent = os.getppid()
        launcher = f"{socket.gethostname()}:{parent}:{_started(parent)}"
        restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "")
        return cls(os.environ["TORCHELASTIC_RUN_ID"], launcher, int(restarts) if restarts.isdecimal() else 0)


def _started(process: int) -> str:
    """When, in the kernel's ticks: in a container, the launcher often has the same number each time."""
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[19]
    except (OSError, IndexError):  # not Linux
        return ""
