"""A plan as a script for sbatch."""

from __future__ import annotations

import math

from ddlprof.base.text import text_of
from ddlprof.emit.start import ENDS, Start

ENDING = "sbatch.sh"
_GRACE_S = 120
"""The seconds before the time limit at which the job is told to end, so that it can save."""
_LONGEST_NAME = 64


def how(start: Start) -> str:
    """How the file is used; `{path}` stands for it."""
    return "sbatch {path}"


def render(start: Start) -> str:
    """Directives, and one task of srun on each machine, which starts a process for each GPU."""
    comments = start.comments(
        how(start).format(path="THIS_FILE"), {},
        ENDS,
        f"A partition, an account and a constraint (nodes with {start.machine.gpu_model}) are yours to add.",
    )  # fmt: skip
    out = start.run_directory(stamp="$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}")
    command = start.torchrun(out, '"$SLURM_NODEID"', '"$MASTER_ADDR"')
    return text_of(
        [
            "#!/bin/bash",
            *(f"# {line}" for line in comments),
            *(f"#SBATCH {option}" for option in _options(start)),
            "set -eu",
            'export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
            "train() {",
            *(f"  {line}" for line in command),
            "}",
            "export -f train",
            'srun --ntasks-per-node=1 --cpus-per-task="$SLURM_CPUS_ON_NODE" bash -c train',
        ]
    )


def clock(seconds: float) -> str:
    """Slurm's [days-]hours:minutes:seconds, of a whole number of seconds."""
    whole = math.ceil(seconds)
    text = f"{whole % 86400 // 3600:02d}:{whole % 3600 // 60:02d}:{whole % 60:02d}"
    return f"{whole // 86400}-{text}" if whole >= 86400 else text


def _options(start: Start) -> list[str]:
    minutes = math.ceil(start.longest_s / 60)
    options = [
        f"--job-name={start.name[:_LONGEST_NAME]}",
        f"--nodes={start.nodes}",
        "--ntasks-per-node=1",
        f"--gres=gpu:{start.gpus_per_node}",
        "--exclusive",
        "--mem=0",
        f"--time={clock(max(minutes, 1) * 60)}",
    ]
    if start.machine.is_spot:
        options += ["--requeue", "--open-mode=append", f"--signal=TERM@{_GRACE_S}"]
    return options
