"""The list of commands, and that none is imported before somebody asks for it."""

from __future__ import annotations

import subprocess
import sys

import pytest
import typer

from ddlprof.cli.commands import COMMANDS
from ddlprof.cli.parser import app

WIDTH = 80


def test_the_list_has_a_whole_line_for_each_command() -> None:
    room = WIDTH - 6 - max(map(len, COMMANDS))
    for named in COMMANDS.values():
        assert named.help[0].isupper()
        assert named.help.endswith(".")
        assert len(named.help) <= room


def test_every_command_is_there_when_it_is_asked_for() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert list(commands) == list(COMMANDS)
    for name, command in commands.items():
        assert command.name == name
        assert command.help


@pytest.mark.parametrize(
    ("words", "imported"),
    [(["--help"], set()), (["--version"], set()), (["doctor", "--help"], {"doctor"}), (["rprt"], set())],
)
def test_a_command_waits_for_no_other(words: list[str], imported: set[str]) -> None:
    code = (
        f"import sys; sys.argv = ['ddlprof', *{words!r}]\n"
        "from ddlprof.cli.app import main\n"
        "main()\n"
        f"print(sorted(m.rpartition('.')[2] for m in sys.modules if m in "
        f"{[f'ddlprof.cli.{named.module or name}' for name, named in COMMANDS.items()]!r}), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == str(sorted(imported))
