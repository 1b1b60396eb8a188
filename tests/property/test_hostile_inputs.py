"""Damaged and hostile files and options: every try ends in a result or in one line of ours.

The seeds are fixed; `python -m scripts.fuzz.inputs` makes as many more tries as one likes.
"""

from __future__ import annotations

import random
from itertools import islice
from pathlib import Path

import pytest

from scripts.fuzz import inputs

TRIES = 25


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DDLPROF_CATALOG", str(tmp_path / inputs.CATALOG))


def ask(arguments: list[str], content: object, folder: Path) -> str | None:
    return inputs.outcome(inputs.Try({inputs.JOB: inputs.as_json(content)}, arguments), folder)


@pytest.mark.parametrize("kind", inputs.KINDS)
def test_whatever_comes_in_a_result_or_one_line_comes_out(kind: str, tmp_path: Path) -> None:
    for each in islice(inputs.tries(kind, random.Random(f"12 {kind}")), TRIES):
        assert inputs.outcome(each, tmp_path) is None, each


@pytest.mark.parametrize("arguments", inputs.ASK_JOB, ids=lambda words: words[0])
def test_what_is_not_damaged_is_answered(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask(arguments, inputs.WORKLOAD, tmp_path) is None
    assert (tmp_path / "out.json").stat().st_size > 100


def test_a_failure_would_be_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> int:
        raise KeyError("x")

    monkeypatch.setattr(inputs, "command", broken)
    assert "KeyError" in str(ask(["recommend"], {}, tmp_path))
    monkeypatch.setattr(inputs, "command", lambda: 2)
    assert ask(["recommend"], {}, tmp_path) == "no word of why"
