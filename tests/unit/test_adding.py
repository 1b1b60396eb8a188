"""What docs/architecture.md says of adding things is true: each is added here, in as many places as the page says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ddlprof.cli.report import report
from ddlprof.recommender import Estimate, Measurement, PredictionError, Predictor, Target, Workload, recommend
from ddlprof.recommender.compute.memory import JobMemory
from ddlprof.recommender.strategy import STRATEGIES, Strategy
from ddlprof.report.run.formats import FORMATS, Analysed
from tests.golden.runs import HERE

T4 = "g4dn.12xlarge"
TWO_NODES = Target(T4, placement=(4, 4), batch_per_gpu=12)


def job(strategy: str = "ddp") -> Workload:
    measured = Measurement(T4, placement=(1,), batch_per_gpu=12, step_s=0.5, exposed_comm_s=0.0, strategy=strategy)
    return Workload(
        name="bert-base",
        layers=76,
        parameter_tensors=199,
        gradient_bytes=438e6,
        peak_memory_bytes=6_000_000_000,
        measurements=[measured],
    )


def test_a_strategy_is_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Signs of gradients in place of gradients: a 32nd of the bytes, and optimizer states on a parameter server."""
    target = replace(TWO_NODES, strategy="signs")
    with pytest.raises(PredictionError, match="signs"):
        Predictor(job()).predict(target)
    monkeypatch.setitem(STRATEGIES, "signs", Strategy("signs of gradients: a 32nd of the bytes", 1 / 32, 0.5))

    plain, signs = Predictor(job()).predict(TWO_NODES), Predictor(job()).predict(target)
    assert signs.network_s < 0.5 * plain.network_s
    assert "signs of gradients: a 32nd of the bytes" in signs.basis
    held, shared = (JobMemory(job(), precision="fp32", strategy=name).needed_gib(12, 8) for name in ("ddp", "signs"))
    assert held is not None
    assert shared is not None
    assert shared < held
    assert Predictor(job("signs")).predict(target).network_s > 0


def test_a_report_is_one_file_and_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def one_line(run: Analysed) -> list[str]:
        return [f"{run.report.world_size} ranks\n"]

    monkeypatch.setitem(FORMATS, "line", one_line)
    report([str(HERE / "two-ranks")], format="line")
    assert capsys.readouterr().out == "2 ranks\n"


class HalfSpeed:
    """A consumer stands behind the one method of `Predicts`, or in front of it, as here."""

    def __init__(self, workload: Workload) -> None:
        self._predictor = Predictor(workload)

    def predict(self, target: Target) -> Estimate:
        found = self._predictor.predict(target)
        return replace(found, step_s=2 * found.step_s, low_s=2 * found.low_s, high_s=2 * found.high_s)


def test_a_consumer_of_the_predictor_needs_its_one_method() -> None:
    steps = 1000
    arguments = {"samples": steps * 12, "budget_s": 1e6, "instance_types": [T4], "max_nodes": 1, "region": "us-east-1"}
    plain = recommend(job(), **arguments)  # type: ignore[arg-type]
    slow = recommend(job(), predictor=HalfSpeed(job()), **arguments)  # type: ignore[arg-type]
    assert [plan.step_s for plan in slow if plan.step_s] == pytest.approx(
        [2 * plan.step_s for plan in plain if plan.step_s]
    )
    assert any(plan.step_s for plan in plain)


def test_the_page_names_what_is_tried_here() -> None:
    page = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text(encoding="utf-8")
    places = ("recommender/strategy.py", "ddlprof/report/run/formats.py", "ddlprof.recommender.Predicts")
    # tests/unit/collect/accelerator/test_adding_an_accelerator.py adds this one
    elsewhere = ("ddlprof/collect/accelerator/known.py",)
    assert [place for place in (*places, *elsewhere) if place not in page] == []
