"""Policies by name: ours, those of installed packages, and any class by its path."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ddlprof.base.errors import DdlprofError
from ddlprof.extensions.cluster.policies.fifo import Fifo
from ddlprof.extensions.cluster.policy import policy_factory, policy_names

ROOT = Path(__file__).parents[3]
POLICY = """
from ddlprof.extensions.cluster.policies.fifo import Fifo

class Backwards(Fifo):
    def __init__(self, hours: float = 2.0) -> None:
        self.hours = hours

    def decide(self, now_s, queue, running, cluster, predictor):
        return super().decide(now_s, queue[::-1], running, cluster, predictor)
"""
SCRIPT = """
from ddlprof.extensions.cluster.jobs import Job
from ddlprof.extensions.cluster.machines import parse_cluster
from ddlprof.extensions.cluster.policy import policy_factory, policy_names
from ddlprof.extensions.cluster.simulation.core import simulate
from scripts.lab.as_measured import AsMeasured

jobs = [Job(name, 0.0, 4, 10.0, 1, 1.0) for name in "abc"]
made = policy_factory("backwards;hours=3")()
print("backwards" in policy_names(), made.hours, [
    outcome.job.job_id for outcome in simulate(jobs, parse_cluster("1x4"), made, AsMeasured()).outcomes
])
"""


def installed(folder: Path, module: str = "their_policies") -> Path:
    """A folder as pip leaves it: the module, and the metadata of its distribution with the entry point."""
    (folder / f"{module}.py").write_text(POLICY)
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[ddlprof.policies]\nbackwards = their_policies:Backwards\n")
    return folder


def test_a_policy_of_an_installed_package_is_known_by_its_name(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(installed(tmp_path)), str(ROOT)])}
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert (ran.returncode, ran.stdout) == (0, "True 3.0 ['c', 'b', 'a']\n"), ran.stderr


def test_an_entry_point_without_its_module_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(installed(tmp_path)))
    (tmp_path / "their_policies.py").unlink()
    assert "backwards" in policy_names()
    with pytest.raises(DdlprofError, match=r"--policy backwards: .*No module named 'their_policies'"):
        policy_factory("backwards")


def test_a_class_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a_policy_of_mine.py").write_text(POLICY)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert isinstance(policy_factory("a_policy_of_mine:Backwards")(), Fifo)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nonesuch", "--policy nonesuch: unknown; there are .*fifo"),
        ("", "unknown"),
        ("nonesuch:Class", "No module named 'nonesuch'"),
        ("math:Nothing", "has no attribute 'Nothing'"),
        ("fifo;speed=3", "fifo has no parameter 'speed'; it has none"),
    ],
)
def test_what_is_no_policy_is_one_line(text: str, said: str) -> None:
    with pytest.raises(DdlprofError, match=said) as caught:
        policy_factory(text)
    assert "\n" not in str(caught.value)


def test_every_policy_of_ours_can_be_made_and_says_its_lease_and_round() -> None:
    for name in policy_names():
        made = policy_factory(name)()
        assert made.lease_s >= 0
        assert made.round_s is None or made.round_s > 0
