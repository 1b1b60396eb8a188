"""The last lines of the demo, from the commands that it runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddlprof.cli.parser import call
from scripts.demo_answer import answer
from tests.golden.runs import HERE

EXAMPLE = HERE.parents[1] / "examples/gpt2-large.json"


def test_they_answer_what_the_demo_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DDLPROF_CATALOG", str(tmp_path / "none"))
    call(["report", str(HERE / "two-ranks"), "-o", str(tmp_path / "run.json")])
    call(["recommend", str(EXAMPLE), "--samples", "300k", "--budget", "12h", "-o", str(tmp_path / "plans.json")])
    step, machine, page = answer(tmp_path)
    assert step.startswith("Step     mostly computing; the largest avoidable stall is data, 16 %; next: ")
    assert " of aws (" in machine
    assert machine.endswith(" USD")
    assert str(tmp_path / "page.html") in page
