"""Sweeps on clusters of Dask and Ray."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddlprof.base.errors import UserError
from ddlprof.extensions.cluster.machines import parse_cluster
from ddlprof.extensions.cluster.sweep import elsewhere
from ddlprof.extensions.cluster.sweep.cases import cases
from ddlprof.extensions.cluster.sweep.run import Setting, run_cases
from ddlprof.extensions.cluster.trace import read_trace
from scripts.lab.as_measured import AsMeasured


def test_other_clusters_are_not_known() -> None:
    with pytest.raises(UserError, match=r"--on slurm: expected dask, dask:ADDRESS"), elsewhere.on_cluster("slurm"):
        pass


@pytest.mark.parametrize("kind", ["dask", "ray"])
def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(elsewhere, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=rf"pip install 'ddlprof\[{kind}\]'"), elsewhere.on_cluster(kind):
        pass


@pytest.mark.parametrize(("kind", "module"), [("dask", "distributed"), ("ray", "ray")])
def test_a_cluster_made_here_changes_nothing(kind: str, module: str) -> None:
    """Runs where the package is installed, which the tests of every change do not have."""
    pytest.importorskip(module)
    setting = Setting(read_trace(Path("examples/jobs.csv")), parse_cluster("2x4"), AsMeasured())
    asked = cases(["fifo", "srtf"], [0], [0.5, 0.9], [None])
    alone = list(run_cases(setting, asked, workers=1))
    with elsewhere.on_cluster(kind):
        assert list(run_cases(setting, asked)) == alone
