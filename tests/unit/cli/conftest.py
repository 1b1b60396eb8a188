"""The surroundings of commands that predict."""

from __future__ import annotations

from pathlib import Path

import pytest

from recommender.workload_file import write_workload
from tests.unit.cli.commands import BERT


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In a directory of its own, with the embedded catalogue only."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DDLPROF_CATALOG", str(tmp_path / "no-overlay"))


@pytest.fixture
def bert(tmp_path: Path) -> str:
    write_workload(BERT, tmp_path / "bert.json")
    return "bert.json"
