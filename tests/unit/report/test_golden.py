"""Every report of the golden run, word for word. `python -m tests.golden.runs` writes them anew."""

from __future__ import annotations

import pytest

from tests.golden.runs import COMPARED, GOLDEN_RUN, HERE, golden_comparison, golden_outputs


def test_reports_of_the_golden_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(HERE)
    expected = {p.name: p.read_text(encoding="utf-8") for p in (HERE / f"{GOLDEN_RUN}-expected").iterdir()}
    outputs = golden_outputs()
    assert sorted(outputs) == sorted(expected)
    for name, text in outputs.items():
        assert text == expected[name], name


def test_a_comparison_with_a_run_of_an_earlier_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(HERE)
    expected = {p.name: p.read_text(encoding="utf-8") for p in (HERE / "compared-expected").iterdir()}
    assert golden_comparison(*COMPARED) == expected
