"""A folder with a module of the user's, in which `ddlprof fuse` is typed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ddlprof.cli.app import main

Typed = Callable[..., tuple[int, str, str]]
"""Runs `ddlprof` with these words: exit code, stdout, stderr."""


@pytest.fixture
def in_folder_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[str, str], Typed]:
    """Writes a module of this name and text into an empty folder, and goes there. Steps are timed for a moment only."""
    monkeypatch.setattr("ddlprof.extensions.fusion.prediction._MOST_ROUNDS", 3)

    def enter(name: str, text: str) -> Typed:
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "path", list(sys.path))
        monkeypatch.delitem(sys.modules, name, raising=False)

        def typed(*words: str) -> tuple[int, str, str]:
            monkeypatch.setattr(sys, "argv", ["ddlprof", *words])
            return main(), *capsys.readouterr()

        return typed

    return enter
