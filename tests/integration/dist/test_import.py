"""A job that torch.profiler records under `ddlprof run`: of the same steps, its traces say what the run says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import ddlprof
from ddlprof.importing import import_traces
from tests.integration.dist.conftest import DDLPROF, Job

pytestmark = [pytest.mark.dist, pytest.mark.slow]
SCRIPT = Path(__file__).parents[3] / "scripts/jobs/recorded.py"
RECORDED, LOAD_MS, LATE_MS, PAUSE_MS = 8, 20, 30, 10
CLOSE = 0.15
"""Of the step, where nothing else happens on the machine."""


def test_two_ranks(job: Job, tmp_path: Path) -> None:
    words = [*DDLPROF, "--no-calibrate", "--out", "run", str(SCRIPT), "--truth", "truth.json", "--trace", "traces"]
    words += ["--width=64", "--steps=12", "--first=3", f"--recorded={RECORDED}", f"--load-ms={LOAD_MS}"]
    words += [f"--late-ms={LATE_MS}", f"--pause-ms={PAUSE_MS}"]
    (tmp_path / "traces").mkdir()
    job(tmp_path, 2, words)
    import_traces([tmp_path / "traces"], tmp_path / "imported")
    imported, ran = (ddlprof.load(tmp_path / name).steps.set_index(["rank", "step"]) for name in ("imported", "run"))
    assert list(imported.loc[0].index) == list(imported.loc[1].index) == list(range(3, 3 + RECORDED))
    ran = ran.loc[imported.index]
    for name in ("compute", "data", "h2d", "comm", "other"):
        off = ((imported[f"{name}_s"] - ran[f"{name}_s"]).abs() / ran["step_s"]).groupby("rank").min()
        assert (off < CLOSE).all(), name
    own = json.loads((tmp_path / "truth.json").read_text())[3 : 3 + RECORDED]
    waited_s = [row["data_s"] for row in own]
    assert (imported.loc[0]["data_s"] >= 0.9 * LOAD_MS / 1000).all()
    assert (imported.loc[0]["data_s"] - waited_s).abs().min() < 0.1 * LOAD_MS / 1000
    assert imported.loc[0]["straggler_s"].max() > 0.6 * LATE_MS / 1000
    assert imported.loc[1]["straggler_s"].min() < 0.2 * LATE_MS / 1000
