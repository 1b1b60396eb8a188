"""Layouts over many GPUs as a user asks for them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.cli.commands import ddlprof, write_workload
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
        (["--layout", "tp4", "--gpu", "H100", "--strategy", "fsdp"], "--strategy: --layout says it"),
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
