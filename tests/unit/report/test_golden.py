"""Every report of the golden run, word for word. `python -m tests.golden.runs` writes them anew."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.golden.runs import COMPARED, GOLDEN_RUN, HERE, golden_comparison, golden_outputs


def test_reports_of_the_golden_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(HERE)
    expected = {p.name: p.read_text(encoding="utf-8") for p in (HERE / f"{GOLDEN_RUN}-expected").iterdir()}
    outputs = golden_outputs()
    assert sorted(outputs) == sorted(expected)
    for name, text in outputs.items():
        assert text == expected[name], name


def rounded(value: Any) -> Any:
    """To nine digits: what comes after depends on the machine's library of sums and cosines."""
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    if isinstance(value, list):
        return list(map(rounded, value))
    return float(f"{value:.9g}") if isinstance(value, float) else value


def test_a_comparison_with_a_run_of_an_earlier_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(HERE)
    expected = {p.name: p.read_text(encoding="utf-8") for p in (HERE / "compared-expected").iterdir()}
    outputs = golden_comparison(*COMPARED)
    texts = [rounded(json.loads(each.pop("json.txt"))) for each in (outputs, expected)]
    assert texts[0] == texts[1]
    assert outputs == expected
