"""What the environment tells before there is a process group: rank, machine and launcher of this process.

This rank is only a hint, which keeps all ranks but one from choosing a run directory. The process group gives the true
rank.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

_RANK = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK")
"""Variables of torch's launcher, Slurm's srun, Open MPI, PMIx, MPICH and Intel MPI, and MVAPICH. The first that is set
counts."""
_LOCAL_RANK = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")


def rank() -> int:
    """The rank of this process; 0 if no variable is set."""
    return _first(_RANK)


def local_rank() -> int:
    """The rank among the processes of this machine."""
    return _first(_LOCAL_RANK)


def world_size() -> int:
    """The world size by torch's variable.

    A scheduler's number of tasks is not used, as it may be that of several jobs.
    """
    return max(1, _first(("WORLD_SIZE",), 1))


def _first(names: tuple[str, ...], default: int = 0) -> int:
    for name in names:
        if (text := os.environ.get(name, "")).isdecimal():
            return int(text)
    return default


_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_NETWORK_NAMESPACE = Path("/proc/self/ns/net")


def node_identity() -> str:
    """An identity that is equal for processes which can talk without a network, and different for others.

    It is `NCCL_HOSTID`, or the host name and boot id with the network namespace, as containers of one host with
    separate network stacks talk over a network. Without /proc it is the host name alone. It is compared among running
    ranks and has no meaning elsewhere. Launchers' node numbers may be set wrongly, and machine ids are equal on cloned
    images, so neither is used.
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
    """How torch's elastic launcher started this process. The defaults mean that it did not."""

    run_id: str | None = None
    """The id of the rendezvous, which all machines of the job share."""
    launcher: str = ""
    """The id of one launcher process on one machine. It is the same after a restart."""
    restarts: int = 0
    """The number of restarts counted by this launcher. Changes of membership are not counted, and a late launcher
    starts at 0."""

    @classmethod
    def from_environment(cls) -> ElasticLaunch:
        """Reads it from the environment of this process."""
        if "TORCHELASTIC_RUN_ID" not in os.environ:
            return cls()
        parent = os.getppid()
        launcher = f"{socket.gethostname()}:{parent}:{_started(parent)}"
        restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "")
        return cls(os.environ["TORCHELASTIC_RUN_ID"], launcher, int(restarts) if restarts.isdecimal() else 0)


def _started(process: int) -> str:
    """The start of a process in the kernel's ticks.

    The number alone is not unique: in containers it is often the same.
    """
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[19]
    except (OSError, IndexError):  # not Linux
        return ""
