"""Steps with rings behind the backward pass."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from ddlprof.extensions.cluster.machines import Level
from ddlprof.extensions.cluster.penalties import read_penalties
from scripts.bench import dally_penalties
from scripts.bench.dally_penalties import Layer, step_s


def test_a_step_by_hand() -> None:
    layers = [Layer(1.0, 2.0, 4e9), Layer(1.0, 2.0, 4e9)]
    # The last layer's ring of 4 s begins at 4 s and ends at 8; that of the first one ends at 12.
    assert step_s(layers, 2, 1.0, 0.0) == pytest.approx(12.0)
    assert step_s(layers, 2, 1000.0, 0.0) == pytest.approx(6.004)
    assert step_s([Layer(1.0, 2.0, 0.0)], 2, 1.0, 1.0) == 3.0


def test_the_file_is_one_of_penalties(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    head = "file,dally_job_model,forward_ns,input_grad_ns,weight_grad_ns,allreduce_bytes"
    rows = "\n".join(f"m_astra-sim.csv,M,1000000,1000000,1000000,{size}" for size in (1e6, 5e7))
    (tmp_path / "layers.csv").write_text(f"{head}\n{rows}\n")
    monkeypatch.setattr(sys, "argv", ["dally_penalties", str(tmp_path / "layers.csv"), "12.5", "0.3"])
    dally_penalties.main()
    text = capsys.readouterr().out
    assert {row["level"] for row in json.loads(text)["penalties"]} == {"rack", "network"}
    (tmp_path / "p.json").write_text(text)
    penalties = read_penalties(tmp_path / "p.json")
    rack, network = (penalties.of("V100", "M", 32, 8, level).factor for level in (Level.RACK, Level.NETWORK))
    assert 1 < rack < network
