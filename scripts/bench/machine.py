"""Describes the machine and its software, for the head of a benchmark's table."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

from ddlprof.base.cores import available_cores
from ddlprof.collect.facts.machine import cpu_model, cpu_quota_cores


def describe() -> str:
    """One Markdown line: processor, cores, memory, kernel, versions, load."""
    import torch

    quota = cpu_quota_cores()
    cores = f"{available_cores()} cores" + (f" (quota {quota:g})" if quota else "")
    parts = [cpu_model() or "unknown processor", cores, _memory(), f"{platform.system()} {platform.release()}"]
    parts += [f"Python {platform.python_version()}", f"torch {torch.__version__}"]
    if hasattr(os, "getloadavg"):
        parts.append(f"load average {os.getloadavg()[0]:.2f} at the start")
    return "Machine: " + ", ".join(part for part in parts if part)


def _memory() -> str:
    try:
        first = Path("/proc/meminfo").read_text(encoding="ascii").split("\n", 1)[0]
        return f"{int(first.split()[1]) / 2**20:.0f} GiB"
    except OSError:
        return ""


if __name__ == "__main__":
    sys.stdout.write(describe() + "\n")
