"""The list of commands, and that none is imported before somebody asks for it."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import typer

from ddlprof.cli.commands import commands as all_commands
from ddlprof.cli.panels import panel_of
from ddlprof.cli.parser import app, call
from tests.unit.test_docs import wrong

COMMANDS = all_commands()
WIDTH = 80


def test_the_list_has_a_whole_line_for_each_command() -> None:
    room = WIDTH - 4 - max(map(len, COMMANDS))
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
        f"{[named.module for named in COMMANDS.values()]!r}), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == str(sorted(imported))


def test_every_command_ends_its_help_with_examples_that_are_right() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for name, command in commands.items():
        for path, each in [(name, command), *((f"{name} {i}", c) for i, c in getattr(command, "commands", {}).items())]:
            examples = re.findall(r"^  (ddlprof .*)$", each.epilog, re.M)
            assert 1 <= len(examples) <= 2, path
            assert each.epilog.startswith("\b\nExample"), path
            for example in examples:
                assert example.startswith(f"ddlprof {path}"), path
                assert wrong(example) is None


def test_the_groups_are_in_the_order_of_a_users_day(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["--help"]) == 0
    out = capsys.readouterr().out
    titles = [line[:-1] for line in out.splitlines() if line.endswith(":") and line[:1].isalpha()]
    assert titles == ["Options", "Profile", "Choose", "Plan", "Do more", "Help"]
    assert all(len(line) <= WIDTH for line in out.splitlines())


@pytest.mark.parametrize("name", ["run", "recommend", "predict", "plan", "elastic"])
def test_a_long_help_has_its_options_in_panels(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
    options = [each for each in command.params if each.param_type_name == "option"]
    panels = {panel_of(each) for each in options}
    assert 3 <= len(panels) <= 5
    assert "Help" not in panels  # that is --help alone
    assert call([name, "--help"]) == 0
    out = capsys.readouterr().out
    titles = [line[:-1] for line in out.splitlines() if line.endswith(":") and line[:1].isalpha()]
    assert titles[-2:] == ["Output", "Help"]
    assert set(titles) - {"Arguments"} == panels | {"Help"}
    assert len(re.findall(r"^  -", out, re.M)) == len(options) + 1
    assert all(len(line) <= WIDTH for line in out.splitlines())


def test_a_short_help_has_one_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["report", "--help"]) == 0
    assert "\nOptions:\n" in capsys.readouterr().out
