"""What tests of commands share, and the surroundings of those that predict."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main

from tests.unit.cli.commands import BERT, write_workload


@pytest.fixture(scope="session", autouse=True)
def commands_are_built_once() -> Iterator[None]:
    """A process of `ddlprof` makes its commands of their functions once, and so does that of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", functools.cache(typer.main.get_command))
        yield


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In a directory of its own, with the embedded catalogue only."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DDLPROF_CATALOG", str(tmp_path / "no-overlay"))


@pytest.fixture
def bert(tmp_path: Path) -> str:
    write_workload(BERT, tmp_path / "bert.json")
    return "bert.json"
