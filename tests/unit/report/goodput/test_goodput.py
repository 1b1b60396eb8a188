"""The goodput of a job in dollars and words, on its card, on its page, and by the command."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ddlprof.base.errors import UserError
from ddlprof.cli.app import main
from ddlprof.instance_catalog import Price
from ddlprof.model.trial import AttemptFacts, ReadFrom, SavedAt
from ddlprof.report.goodput.data import goodput_report
from ddlprof.report.goodput.of_runs import goodput_of
from ddlprof.report.goodput.text import render, saving
from scripts.lab.simulated_month import Job, write_month
from tests.golden.runs import simple_run

PARTS = {"steps": 7200.0, "checkpoint": 60.0, "evaluation": 0.0, "start_up": 300.0, "hang": 0.0, "idle": 40.0}
PRICE = Price("aws", "us-east-1", "x", "on_demand", 10.0, "2026-07-20", "read", "")
Command = Callable[..., tuple[int, str, str]]


def trial(begin_s: float, **facts: object) -> AttemptFacts:
    made = AttemptFacts(
        begin_s, begin_s + 7600, 16, 2, 720, 10.0, PARTS, "torn", 3, 64, "A100", (SavedAt(600, "p", "f"),)
    )
    return replace(made, **facts)  # type: ignore[arg-type]


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    def command(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["ddlprof", "report", *words])
        capsys.readouterr()
        return main(), *capsys.readouterr()

    return command


def test_dollars_are_those_of_the_machines_and_of_the_ones_that_wait() -> None:
    found = goodput_report("job", [trial(0), trial(8600, reads=(ReadFrom("p", "f"),), status="ok")], PRICE)
    assert found is not None
    assert found.usd == pytest.approx(10 * 2 * (7600 + 1000 + 7600) / 3600)
    assert sum(usd or 0.0 for usd in found.parts_usd.values()) == pytest.approx(found.usd)
    (failure,) = found.failures
    assert failure.lost_h == pytest.approx(16 * (1000 + 300 + 1200) / 3600)
    assert failure.lost_usd == pytest.approx(10 * 2 * (1000 + 300 + 1200) / 3600)
    assert found.lost_to_failures_usd == failure.lost_usd
    assert found.unit == "GPU-hours"
    without = goodput_report("job", [trial(0)])
    assert without is not None
    assert without.usd is None
    assert without.lost_to_failures_usd is None
    assert without.saving is None


def test_the_interval_beside_the_one_used() -> None:
    found = goodput_report("job", [trial(0), trial(8600, reads=(ReadFrom("p", "f"),), status="ok")])
    assert found is not None
    assert found.saving is not None
    assert found.saving.checkpoint_s == 20
    assert found.saving.every_s == 2400
    assert found.saving.failure_every_s == 2 * 7600
    assert found.saving.young_s == pytest.approx((2 * 20 * 15200) ** 0.5)
    assert found.saving.daly_s == pytest.approx(found.saving.young_s, rel=0.05)
    assert found.saving.daly_lost_share < found.saving.lost_share < 0.3
    assert "one every 12.8 min (77 steps) would cost least" in saving(found.saving)


def test_words() -> None:
    second = trial(8600, reads=(ReadFrom("p", "f"),), samples_per_step=32, ranks=8)
    found = goodput_report("job", [trial(0), second, trial(17000, steps=0)], PRICE)
    assert found is not None
    text = render(found)
    assert "steps done again" in text
    assert "1 of 1 restarts: read a checkpoint that an attempt before had written" in text
    assert "1 restart ended before the first step" in text
    assert "a step is not the same work in all attempts: 32 to 64 samples" in text


def test_the_card_the_page_and_the_command_of_a_run(tmp_path: Path, report: Command) -> None:
    truth = write_month(tmp_path / "run", Job(seed=1, save_every=25))
    code, card, _ = report(str(tmp_path / "run"))
    assert code == 0
    assert "Goodput  " in card
    assert f"Failures {truth.failures} cost " in card
    report(str(tmp_path / "run"), "--format", "html", "-o", str(tmp_path / "page.html"))
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "All attempts of the job" in page
    assert "read its checkpoint" in page
    code, shown, _ = report(str(tmp_path / "run"), "--goodput", "--format", "json", "--instance", "p4d.24xlarge")
    assert code == 0
    assert len(json.loads(shown)["failures"]) == truth.failures
    assert json.loads(shown)["usd"] > 0
    for words in (["--goodput", "--save-summary"], ["--goodput", "--format", "html"], ["--goodput", "--instance", "x"]):
        code, _, error = report(str(tmp_path / "run"), *words)
        assert code == 2
        assert error.count("\n") == 1


def test_runs_of_different_scripts_are_no_attempts_of_one_job(tmp_path: Path) -> None:
    for name, script in (("a", "train.py"), ("b", "evaluate.py"), ("c", "train.py")):
        simple_run(tmp_path / name, steps=4)
        path = tmp_path / name / "manifest.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"argv": [f"/w/{script}"], "job_id": name}))
    with pytest.raises(UserError, match=r"different scripts: .*a of train.py, .*b of evaluate.py; .* ddlprof fleet"):
        goodput_of([str(tmp_path / "a"), str(tmp_path / "b")])
    assert len(goodput_of([str(tmp_path / "a"), str(tmp_path / "c")]).attempts) == 2
