"""The counts of a model that nobody runs, from Python."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ddlprof.base.errors import UserError
from ddlprof.planning.features import count_model

NETS = """
from torch import nn

def text():
    return nn.Sequential(nn.Embedding(100, 8), nn.Linear(8, 100))
"""


def test_one_line_counts_what_recommend_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "planning_nets.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    counted = count_model("planning_nets:text", ["int64:32"], batch=4, optimizer="sgd")
    assert (counted.facts.name, counted.facts.parameters, counted.tokens_per_sample) == ("text", 1700, 32)
    workload = counted.workload()
    assert (workload.name, workload.gradient_bytes, workload.tokens_per_sample) == ("text", 6800, 32)
    assert workload.step is not None
    assert (workload.step.batch, workload.step.optimizer) == (4, "sgd")
    assert count_model("planning_nets:text").workload().tokens_per_sample is None
    with pytest.raises(UserError, match="precision fp64: not known"):
        count_model("planning_nets:text", precision="fp64")
