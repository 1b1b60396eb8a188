"""A job, work for it, and commands as a user types them, in this process."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import pytest

from ddlprof.cli.app import main
from ddlprof.cli.commands import owner
from ddlprof.recommender import Measurement, Workload
from ddlprof.recommender.workload import workload_text

WORK = ["--budget", "12h", "--samples", "1000000"]
BERT = Workload(
    name="bert-base", layers=76, parameter_tensors=199, gradient_bytes=438e6, peak_memory_bytes=6 << 30,
    measurements=[Measurement("g4dn.12xlarge", placement=(1,), batch_per_gpu=12, step_s=0.5, exposed_comm_s=0.0)],
)  # fmt: skip


def ddlprof(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["ddlprof", *arguments])
    return main()


def skip_without(name: str) -> None:
    """Skips a test of commands of rooms, too, where the room was taken out."""
    if name.isalpha() and name.islower() and owner(name) is None:
        pytest.skip(f"there is no command {name} here")


def write_workload(workload: Workload, path: Path) -> None:
    path.write_text(workload_text(workload), encoding="utf-8")


def rows(path: str) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
