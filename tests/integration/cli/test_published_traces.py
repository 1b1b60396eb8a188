"""Traces that others published import and are reported, each alone and those of one job together."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import ddlprof
from ddlprof.cli.app import main

_FOLDERS = (above / "shared" / "data" / "kineto" for above in Path(__file__).resolve().parents)
TRACES = sorted(next((folder for folder in _FOLDERS if folder.is_dir()), Path("absent")).glob("*.json.gz"))

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not TRACES, reason="needs ../shared/data/kineto")]


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name.partition(".")[0])
def test_a_published_trace(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (["import", str(path), "--out", str(tmp_path / "run")], ["report", str(tmp_path / "run")]):
        monkeypatch.setattr(sys, "argv", ["ddlprof", *words])
        assert main() == 0
    assert "Step " in capsys.readouterr().out
    steps = ddlprof.load(tmp_path / "run").steps
    classes = steps[["compute_s", "data_s", "h2d_s", "comm_s", "other_s"]]
    assert (classes.fillna(0) >= 0).all().all()
    assert (classes.sum(axis=1) - steps["step_s"]).abs().max() < 1e-9


def test_two_ranks_of_one_job(tmp_path: Path) -> None:
    from ddlprof.importing import import_traces

    made = import_traces([path for path in TRACES if path.name.startswith("hta_sampled")], tmp_path / "run")
    assert (made.ranks, made.world_size, made.steps) == (2, 128, 2)
    assert set(ddlprof.load(tmp_path / "run").steps["rank"]) == {0, 1}
