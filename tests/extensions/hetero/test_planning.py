"""The plan of a job on unequal GPUs, from Python."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ddlprof.extensions.hetero.planning import plan_for
from ddlprof.recommender import Measurement, Workload
from ddlprof.recommender.workload import workload_text

MACHINES = {
    "machines": [
        {"gpu": "V100", "gpus": 1, "network": "10 Gbit/s"},
        {"gpu": "GTX 1080 Ti", "gpus": 1, "network": "10 Gbit/s"},
    ]
}
NET = Workload(
    "net", layers=2, gradient_bytes=4e6, global_batch=64,
    measurements=[Measurement(gpu_model="V100", placement=(1,), batch_per_gpu=64, step_s=0.05, compute_s=0.05)],
)  # fmt: skip


def test_one_line_plans_with_an_interval_and_a_trace(tmp_path: Path) -> None:
    (tmp_path / "net.json").write_text(workload_text(NET))
    (tmp_path / "machines.json").write_text(json.dumps(MACHINES))
    found = plan_for([str(tmp_path / "net.json")], tmp_path / "machines.json", global_batch=32)
    assert found.split is not None
    assert (found.job, sum(found.split.best.strategy.samples)) == ("net", 32)
    interval_s = found.interval_s
    assert interval_s is not None
    assert interval_s[0] < found.step_s < interval_s[1]
    assert max(each.end_s for each in found.slices()) == pytest.approx(found.step_s)
    assert any("layers were not recorded" in note for note in found.notes)
