"""Layouts over many GPUs as a user asks for them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ddlprof.recommender import transformer
from ddlprof.recommender.search.rules import RULES
from tests.unit.cli.commands import ddlprof, rows, write_workload
from tests.unit.recommender.made_up_layouts import JOB

pytestmark = pytest.mark.usefixtures("alone")


@pytest.fixture
def model(tmp_path: Path) -> str:
    write_workload(JOB, tmp_path / "model.json")
    return str(tmp_path / "model.json")


def test_predict(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], model: str) -> None:
    asked = ["predict", model, "--layout", "tp4,pp2,dp8,zero1,ga16", "--gpu", "H100", "--network-gbps", "400"]
    assert ddlprof(monkeypatch, *asked, "-o", "-", "-o", "p.json") == 0
    assert capsys.readouterr().out.startswith("ddlprof  predict made-up · tp4,pp2,zero1 · 8 x 8 on H100\n")
    value = json.loads(Path("p.json").read_text(encoding="utf-8"))
    assert (value["layout"], value["gpus"], value["data"], value["global_batch"]) == ("tp4,pp2,zero1", 64, 8, 128)
    assert value["target"]["network_gbps"] == 400
    assert value["estimate"]["low_s"] < value["estimate"]["step_s"] < value["estimate"]["high_s"]


def test_predict_neighbours(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], model: str) -> None:
    asked = ["predict", model, "--layout", "tp4,pp2,dp8", "--instance", "p5.48xlarge", "--global-batch", "128"]
    assert ddlprof(monkeypatch, *asked, "--vary", "recompute", "-o", "-", "-o", "p.json") == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line[:1].isdigit()]
    assert [row[1] for row in rows] == ["none", "selective", "full"]
    found = json.loads(Path("p.json").read_text(encoding="utf-8"))["predictions"]
    assert [one["global_batch"] for one in found] == [128] * 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--layout", "tp4,xx2", "--gpu", "H100"], "'xx2' is not known"),
        (["--layout", "tp4", "--gpu", "H100", "--strategy", "fsdp"], "--strategy: it goes without --layout"),
        (["--vary", "tensor", "--gpu", "H100"], "--vary: it is part of a --layout"),
        (["--layout", "tp4", "--instance", "p5.48xlarge", "--network-gbps", "9"], "--network-gbps: describes a --gpu"),
        (["--layout", "tp4"], "name 1 to 1000 targets"),
        (["--layout", "tp4,dp2", "--gpu", "H100", "--placement", "4,4,4"], "dp2 of the layout is not what is left"),
    ],
)
def test_what_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], model: str, options: list[str], message: str
) -> None:
    assert ddlprof(monkeypatch, "predict", model, *options) == 2
    assert message in capsys.readouterr().err


SEARCH = ["--layouts", "auto", "--global-batch", "512", "--samples", "1e6", "--budget", "30d", "--gpus", "64,128"]
MACHINES = ["--instance", "p5.48xlarge,p4d.24xlarge"]


def test_the_best_layout_on_each_machine(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], model: str
) -> None:
    files = ["a.csv", "a.json", "a.layouts.csv", "a.html"]
    outs = [word for name in ["-", *files] for word in ("-o", name)]
    assert ddlprof(monkeypatch, "recommend", model, *SEARCH, *MACHINES, *outs) == 0
    shown = capsys.readouterr().out
    assert "LAYOUT" in shown
    plans = rows("a.csv")
    assert {(row["instance_type"], row["gpus"]) for row in plans} == {
        (name, gpus) for name in ("p5.48xlarge", "p4d.24xlarge") for gpus in ("64", "128")
    }
    assert {row["global_batch"] for row in plans} == {"512"}
    tried = rows("a.layouts.csv")
    for plan in plans:
        same = [
            row
            for row in tried
            if (row["instance_type"], row["gpus"]) == (plan["instance_type"], plan["gpus"]) and not row["reason"]
        ]
        assert float(plan["step_s"]) == min(float(row["step_s"]) for row in same)
        best = min(same, key=lambda row: float(row["step_s"]))
        assert (plan["layout"], plan["batch_per_gpu"]) == (best["layout"], best["micro_batch"])
        assert float(plan["cost_usd"]) == pytest.approx(float(best["cost_usd"]))
        assert float(plan["time_h"]) == pytest.approx(float(best["time_h"]))
        assert 0 < float(plan["mfu"]) < 1
    assert {row["reason"] for row in tried} <= {"", *RULES}
    assert {"", "memory"} <= {row["reason"] for row in tried}
    value = json.loads(Path("a.json").read_text(encoding="utf-8"))
    assert value["plans"][0]["layout"] == plans[0]["layout"]
    assert value["layouts_tried"]["predicted"] == sum(not row["reason"] for row in tried)
    assert set(value["plans"][0]["dimensions"]) == {"tensor", "pipeline", "context", "expert", "data"}


@pytest.mark.parametrize("engine", ["megatron", "torchtitan", "accelerate"])
def test_the_best_plan_is_launched(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], model: str, engine: str
) -> None:
    asked = ["recommend", model, *SEARCH, *MACHINES, "--emit", engine]
    assert ddlprof(monkeypatch, *asked, "-o", "a.csv", "-o", "a.layouts.csv") == 0
    (path,) = Path().glob("made-up.*")
    assert engine in path.name
    best = rows("a.csv")[0]
    assert f"# Layout {best['layout']} on {best['nodes']} x 8 GPUs:" in path.read_text(encoding="utf-8")
    assert f"wrote {path}; read it, then: " in capsys.readouterr().err
    assert ddlprof(monkeypatch, *asked) == 2
    assert "exists already" in capsys.readouterr().err
    tried = {row["reason"] for row in rows("a.layouts.csv")}
    assert ("launcher" in tried) == (engine == "accelerate")
    if engine == "accelerate":
        assert all(row["pipeline"] == "1" for row in rows("a.layouts.csv") if not row["reason"])


def test_a_model_that_a_framework_cannot_be_told_of_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    both_ways = transformer(layers=16, hidden=1024, heads=16, ffn=4096, vocab=32000, seq=512, causal=False)
    write_workload(both_ways, tmp_path / "both.json")
    asked = ["recommend", str(tmp_path / "both.json"), *SEARCH, *MACHINES, "--emit", "torchtitan"]
    assert ddlprof(monkeypatch, *asked) == 2
    assert "torchtitan has no word for attention to all tokens" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--layouts", "tp8", "--global-batch", "8"], "--layouts takes auto: not 'tp8'"),
        (["--layouts", "auto"], "give --global-batch N"),
        (["--layouts", "auto", "--global-batch", "8", "--batch", "2"], "--batch: it is part of the layouts"),
        (["--layouts", "auto", "--global-batch", "8", "--strategy", "fsdp"], "--strategy: it is part of the layouts"),
        (["--global-batch", "8"], "--global-batch: it goes with --layouts auto"),
        (["--gpus", "8"], "--gpus: it goes with --layouts auto"),
        (["--emit", "megatron"], "--emit megatron writes a layout: give --layouts auto"),
        (["--emit", "ray"], "sagemaker, torchrun, megatron, torchtitan, accelerate"),
    ],
)
def test_what_is_refused_of_a_search(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], model: str, options: list[str], message: str
) -> None:
    assert ddlprof(monkeypatch, "recommend", model, "--samples", "1e6", "--budget", "30d", *options) == 2
    assert message in capsys.readouterr().err
