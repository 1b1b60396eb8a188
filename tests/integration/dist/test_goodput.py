"""Goodput of real jobs that are killed and go on from a checkpoint, beside the log of the script's own clock."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from scripts.lab.resumed_log import read_log
from tests.integration.processes import Processes

SCRIPT = str(Path(__file__).parents[3] / "scripts/jobs/resuming.py")
STEPS = 60
RUN = [sys.executable, "-m", "ddlprof", "run", "--quiet", "--no-calibrate", "--out"]


def goodput_of(processes: Processes, *runs: str) -> dict[str, Any]:
    shown = processes.run(sys.executable, "-m", "ddlprof", "report", "--goodput", *runs, "--format", "json")
    assert shown.returncode == 0, shown.stderr.decode()
    found: dict[str, Any] = json.loads(shown.stdout)
    return found


def require_truth(found: dict[str, Any], folder: Path, ranks: int) -> None:
    """What was done again is known exactly by its number of steps. Of its time only the mean step of its attempt is, so
    on a busy machine the slow steps may be those that count as new, or as repeated."""
    new, again = read_log(folder / "log")
    assert found["new_steps"] == len(new) == STEPS
    assert sum(each["repeated"] for each in found["attempts"]) == len(again) > 0
    hour = 3600 / ranks
    parts = found["parts_h"]
    trained_h = parts["new_steps"] + parts["repeated_steps"]
    assert hour * trained_h == pytest.approx(sum(new) + sum(again), rel=0.25)
    assert parts["new_steps"] / trained_h == pytest.approx(len(new) / (len(new) + len(again)), abs=0.05)
    assert sum(parts.values()) == pytest.approx(found["rank_hours"])
    assert 0 < found["goodput"] < 1
    assert found["goodput"] == pytest.approx(parts["new_steps"] / found["rank_hours"], rel=0.2)
    assert found["saving"]["checkpoint_s"] > 0
    known = {each["known_by"] for each in found["attempts"][1:] if each["steps"]}
    assert known == {"matched"}


@pytest.mark.slow
def test_a_script_that_is_started_again_by_hand(processes: Processes, tmp_path: Path) -> None:
    words = [SCRIPT, ".", str(STEPS), "25,37"]
    codes = [processes.run(*RUN, f"run-{number}", *words).returncode for number in range(3)]
    assert codes == [-signal.SIGKILL, -signal.SIGKILL, 0]
    found = goodput_of(processes, "run-0", "run-1", "run-2")
    require_truth(found, tmp_path, ranks=1)
    assert [each["first_step"] for each in found["attempts"]] == [0, 20, 30]
    assert [each["steps"] for each in found["attempts"]] == [25, 17, 30]
    assert [each["status"] for each in found["failures"]] == ["torn", "torn"]
    assert all(each["start_up_h"] > 0 and each["repeated_h"] > 0 for each in found["failures"])


@pytest.mark.slow
def test_a_job_that_its_launcher_starts_again(
    processes: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Where attempts share the launcher's store, torch 2.13 may let a rank that starts again wait for ever.
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    launcher = ["torchrun", "--standalone", "--nproc-per-node=2", "--max-restarts=5", "--monitor-interval=0.1"]
    ran = processes.run(*RUN, "run", "--", *launcher, SCRIPT, ".", str(STEPS), "25")
    assert ran.returncode == 0, ran.stderr.decode()
    found = goodput_of(processes, "run")
    require_truth(found, tmp_path, ranks=2)
    assert len(found["failures"]) == len(found["attempts"]) - 1 >= 1
    card = processes.run(sys.executable, "-m", "ddlprof", "report", "run").stdout.decode()
    assert "Goodput  " in card
    assert "Failures " in card


@pytest.mark.slow
@pytest.mark.nightly
def test_a_job_that_goes_on_with_fewer_ranks(processes: Processes, tmp_path: Path) -> None:
    words = [SCRIPT, ".", str(STEPS), "25"]
    assert processes.run(*RUN, "two", "--nproc-per-node", "2", *words).returncode != 0
    assert processes.run(*RUN, "one", *words).returncode == 0
    found = goodput_of(processes, "two", "one")
    new, again = read_log(tmp_path / "log")
    assert [(each["ranks"], each["first_step"]) for each in found["attempts"]] == [(2, 0), (1, 20)]
    assert (found["new_steps"], sum(each["repeated"] for each in found["attempts"])) == (len(new), len(again))
    walls = [each["wall_s"] * each["ranks"] for each in found["attempts"]]
    assert 3600 * (found["rank_hours"] - found["parts_h"]["waiting"]) == pytest.approx(sum(walls))
    assert any("samples" in line for line in found["assumed"])  # 4 a rank: a step of two ranks has 8
