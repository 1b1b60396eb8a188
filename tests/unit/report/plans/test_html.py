"""The page of a recommendation."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from ddlprof.cli.app import main
from tests.unit.report.html.test_element import Read

GOLDEN = Path(__file__).resolve().parents[3] / "golden/two-ranks"


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    def write(*words: str) -> tuple[int, str, dict[str, Any]]:
        path = tmp_path / "page.html"
        command = ["ddlprof", "recommend", str(GOLDEN), "-o", str(path), *words]
        monkeypatch.setattr("sys.argv", command)
        code = main()
        text = path.read_text(encoding="utf-8")
        found = re.findall(r'<script type="application/json" id="data-([\w-]+)">(.*?)</script>', text, re.DOTALL)
        data = {name: json.loads(value) for name, value in found}
        return code, Read(re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)).text, data

    return write


def test_time_against_cost_the_plans_and_what_was_rejected(page: Any) -> None:
    code, text, data = page("--budget", "12h", "--samples", "100000000", "--top", "3")
    assert code == 0
    assert "Cheapest" in text
    labels = [group["label"] for group in data["pareto"]["groups"]]
    assert labels == ["nothing is faster and cheaper", "meets the budget", "rejected"]
    front = data["pareto"]["front"]
    assert [hours for hours, _ in front] == sorted(hours for hours, _ in front)
    assert [cost for _, cost in front] == sorted((cost for _, cost in front), reverse=True)
    for group in data["pareto"]["groups"]:
        for hours, usd, least_h, most_h, least_usd, most_usd, label in group["points"]:
            assert least_h <= hours <= most_h
            assert least_usd <= usd <= most_usd
            assert data["pareto"]["labels"][label]
    assert data["pareto"]["unit"] == "hours"
    assert data["pareto"]["limit"] == "budget 12 h"
    assert len(data["pareto"]["groups"][0]["names"]) == len(front)
    assert "By cost, in aws us-east-1" in text
    assert len(data["classes"]["labels"]) == 5  # three types, the knee and the fastest
    for word in ("Rejected, and why", "over budget", "What this rests on", "Prices", "bound by"):
        assert word in text


def test_no_plan_is_a_page_too(page: Any) -> None:
    code, text, data = page("--budget", "1m", "--samples", "100000000000")
    assert code == 1
    assert "No plan meets the budget" in text
    assert "no plan meets 60 s. Soonest done is" in text
    assert "classes" not in data


def test_what_was_asked_for_stands_beside_what_was_measured(page: Any) -> None:
    _, text, _ = page("--budget", "12h", "--samples", "100000", "--precision", "fp16", "--optimizer", "adam")
    assert "precision fp16 (in RUN: fp32), optimizer adam" in text
    assert "As RUN" in text
