"""What the environment says of this process's rank before there is a process group.

A hint, no more: it keeps all ranks but one from choosing a run directory. The process group tells the truth.
"""

from __future__ import annotations

import os

_RANK = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK")
"""Those of torch's launcher, Slurm's srun, Open MPI, PMIx, MPICH and Intel MPI, and MVAPICH: the first set counts."""
_LOCAL_RANK = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")


def rank() -> int:
    """The rank of this process; 0 where nothing tells."""
    return _first(_RANK)


def local_rank() -> int:
    """Among the processes of this machine."""
    return _first(_LOCAL_RANK)


def world_size() -> int:
    """The world size, from torch's variable only: a scheduler's number of tasks need not be that of this job."""
    return max(1, _first(("WORLD_SIZE",), 1))


def _first(names: tuple[str, ...], default: int = 0) -> int:
    for name in names:
        if (text := os.environ.get(name, "")).isdecimal():
            return int(text)
    return default
