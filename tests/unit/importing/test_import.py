"""Traces of known times become runs that say these times."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import ddlprof
from ddlprof.cli.app import main
from ddlprof.importing import import_traces
from ddlprof.model.errors import UserError
from tests.unit.importing.traces import device_trace, host_trace, of_rank, write_trace

CLASSES = ("compute", "data", "h2d", "comm", "other")


def means_us(run: ddlprof.api.Run) -> dict[str, float]:
    """Means of all steps, in microseconds."""
    names = [name for name in run.steps.columns if name.endswith("_s") and name != "start_s"]
    return {name.removesuffix("_s"): round(1e6 * run.steps[name].mean(), 3) for name in names}


@pytest.fixture
def imported(tmp_path: Path):  # type: ignore[no-untyped-def]
    def make(*traces: Path) -> ddlprof.api.Run:
        out = tmp_path / f"run-{len(list(tmp_path.glob('run-*')))}"
        import_traces(traces, out)
        return ddlprof.load(out)

    return make


def test_classes_of_a_device(tmp_path: Path, imported) -> None:  # type: ignore[no-untyped-def]
    means = means_us(imported(write_trace(tmp_path / "a.json.gz", device_trace(), **of_rank(0, 2))))
    assert {name: means[name] for name in ("step", *CLASSES)} == {
        "step": 1000, "compute": 500, "data": 100, "h2d": 100, "comm": 200, "other": 100,
    }  # fmt: skip
    assert [means[f"compute_{part}"] for part in ("forward", "backward", "optimizer")] == [200, 200, 100]


def test_a_late_rank_makes_the_other_wait(tmp_path: Path, imported) -> None:  # type: ignore[no-untyped-def]
    run = imported(
        write_trace(tmp_path / "a.json", device_trace(), **of_rank(0, 2)),
        write_trace(tmp_path / "b.json", device_trace(late_us=50, begin=5_000_000), **of_rank(1, 2)),
    )
    waiting = run.steps.groupby("rank")[["straggler_s", "interconnect_s", "comm_s"]].mean() * 1e6
    assert waiting.loc[0].round(3).tolist() == [50, 150, 200]
    assert waiting.loc[1].round(3).tolist() == [0, 150, 150]


def test_classes_of_a_host(tmp_path: Path, imported) -> None:  # type: ignore[no-untyped-def]
    run = imported(
        write_trace(tmp_path / "a.json", host_trace(), **of_rank(0, 2, "gloo")),
        write_trace(tmp_path / "b.json", host_trace(late_us=500), **of_rank(1, 2, "gloo")),
    )
    steps = run.steps[run.steps["rank"] == 0]
    means = {name: round(1e6 * steps[f"{name}_s"].mean()) for name in ("step", *CLASSES)}
    assert means == {"step": 10_000, "compute": 6000, "data": 1000, "h2d": 0, "comm": 1000, "other": 2000}
    parts = [round(1e6 * steps[f"compute_{part}_s"].mean()) for part in ("forward", "backward", "optimizer")]
    assert parts == [2000, 3000, 1000]
    assert round(1e6 * steps["straggler_s"].mean()) == 500
    assert set(run.collectives["bytes"]) == {4000}


def command(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["ddlprof", *words])
    return main()


def test_the_command_and_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_trace(tmp_path / "a.json", device_trace(), **of_rank(0, 2))
    monkeypatch.chdir(tmp_path)
    assert command(monkeypatch, "import", "a.json", "--out", "run") == 0
    assert capsys.readouterr().out == "1 of 2 ranks, 5 steps\nnext: ddlprof report run\n"
    assert command(monkeypatch, "report", "run") == 0
    card = capsys.readouterr().out
    assert "1 of 2 ranks left a file" in card
    assert "compute 0.50" in card
    assert command(monkeypatch, "import", "a.json", "--out", "run") == 2
    assert "exists already" in capsys.readouterr().err


def test_two_traces_of_one_rank(tmp_path: Path, imported) -> None:  # type: ignore[no-untyped-def]
    traces = [write_trace(tmp_path / name, device_trace(), **of_rank(0, 2)) for name in ("a.json", "b.json")]
    with pytest.raises(UserError, match="both of rank 0"):
        imported(*traces)
    assert not list(tmp_path.glob("run-*"))
