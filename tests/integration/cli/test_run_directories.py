"""Run directories with names that a shell or a parser of options misreads: the next command works as shown."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ddlprof.base.text import plain

Run = Callable[..., subprocess.CompletedProcess[bytes]]


@pytest.mark.parametrize(
    "name",
    [*(pytest.param(name, marks=pytest.mark.slow) for name in ("-x", "my run")), "it's\nVerdict  \x1b[31m"],
    ids=["dash", "space", "line end"],
)
def test_the_next_command_of_the_card_can_be_typed(
    name: str, ddlprof: Run, execute: Run, write_training: Callable[[int], str], tmp_path: Path
) -> None:
    ran = ddlprof("run", f"--out={name}", write_training(12))
    card = ran.stderr.decode()
    assert ran.returncode == 0
    assert plain(card.replace("\n", "")) == card.replace("\n", "")
    assert card.count("Verdict") == 1 + name.count("Verdict") * 2  # the name is there, twice, on one line
    (files,) = (line for line in card.splitlines() if line.startswith("Files"))
    command = files.partition("next: ddlprof ")[2]
    shown = execute("bash", "-c", f"{sys.executable} -m ddlprof {command}", PYTHONPATH=os.getcwd())
    assert shown.stderr.decode() == "ddlprof: wrote page.html\n"
    assert shown.returncode == 0
    assert "</html>" in (tmp_path / "page.html").read_text(encoding="utf-8")
