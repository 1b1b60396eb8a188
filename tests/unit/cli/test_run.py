"""The command line of `ddlprof run`: its options are pinned, and what follows the script is the script's."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from ddlprof.cli import app, fast_path, parser
from ddlprof.launch import command, torchrun
from ddlprof.launch.target import LaunchTarget
from ddlprof.model.options import Options

OPTIONS = {
    "--out", "-o", "--quiet", "--stop-after", "--step-optimizer", "--no-calibrate", "--module", "-m",
    "--nproc-per-node", "--nnodes", "--node-rank", "--master-addr", "--master-port", "--data-call",
    "--profiler-windows", "--time-collectives", "--live", "--hang-after",
}  # fmt: skip


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Which form was started, with what."""
    made: list[tuple[Any, ...]] = []

    def record(form: str, exit_code: int) -> Callable[..., int]:
        def called(*what: Any) -> int:
            made.append((form, *what))
            return exit_code

        return called

    monkeypatch.setattr("ddlprof.launch.target.become", record("become", 0))
    monkeypatch.setattr(torchrun, "launch_target", record("launch", 3))
    monkeypatch.setattr(torchrun, "launch_torchrun", record("torchrun", 4))
    monkeypatch.setattr(command, "run_command", record("command", 5))
    return made


def main(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["ddlprof", *arguments])
    return app.main()


@pytest.mark.parametrize("words", [["-h"], ["help"], ["help", "run"], ["run", "-h"], ["help", "instances", "show"]])
def test_ways_to_ask_for_help(words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    names = [word for word in words if word not in ("-h", "help")]
    assert main(monkeypatch, *words) == 0
    asked = capsys.readouterr().out
    assert main(monkeypatch, *names, "--help") == 0
    assert capsys.readouterr().out == asked
    assert asked.startswith(" ".join(["Usage: ddlprof", *names]))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("print(1)", ["--out", "--hang-after"]),
        ("parser.add_argument('--out')", ["--hang-after"]),
        ("class Arguments:\n    out: str\n    hang_after: int", []),
    ],
)
def test_options_behind_the_script(
    text: str, told: list[str], calls: list[tuple[Any, ...]], monkeypatch: Any, tmp_path: Path, capsys: Any
) -> None:
    """The script gets them, and may well want them."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(text)
    words = ["train.py", "--out", "here", "--hang-after=5", "--epochs", "1"]
    main(monkeypatch, "run", *words)
    assert calls[0][:2] == ("become", LaunchTarget(words))
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[1] for line in lines] == told
    assert all(line.endswith("options of ddlprof run stand before the script") for line in lines)


def test_names_of_the_options() -> None:
    group: Any = typer.main.get_command(parser.app)
    assert {name for parameter in group.commands["run"].params for name in parameter.opts if "-" in name} == OPTIONS
    assert {name for name in OPTIONS if name.startswith("--")} - {"--module"} == fast_path.OWN_OPTIONS


@pytest.mark.parametrize(
    ("arguments", "target", "options"),
    [
        (["train.py"], LaunchTarget(["train.py"]), Options()),
        (["train.py", "--help", "-o", "x", "--", "--out"], LaunchTarget(["train.py", "--help", "-o", "x", "--",
        "--out"]),
         Options()),
        (["--", "train.py", "--", "x"], LaunchTarget(["train.py", "--", "x"]), Options()),
        (["--live", "train.py"], LaunchTarget(["train.py"]), Options(live=True)),
        (["--live", "--quiet", "train.py"], LaunchTarget(["train.py"]), Options(quiet=True)),
        (["--out", "d", "--stop-after", "5", "train.py"], LaunchTarget(["train.py"]), Options(out="d", stop_after=5)),
        (["--out=d", "--stop-after=5", "train.py"], LaunchTarget(["train.py"]), Options(out="d", stop_after=5)),
        (["--profiler-windows", "3", "--time-collectives", "train.py"], LaunchTarget(["train.py"]),
         Options(profiler_windows=3, time_collectives=True)),
        (["--quiet", "--no-calibrate", "--step-optimizer", "Adam", "train.py"], LaunchTarget(["train.py"]),
         Options(quiet=True, calibrate=False, step_optimizer="Adam")),
        (["--data-call", "__main__:get_batch", "--data-call=p.data:main.<locals>.f", "train.py"],
        LaunchTarget(["train.py"]),
         Options(data_calls=["__main__:get_batch", "p.data:main.f"])),
        (["--quiet", "-m", "package.train", "--help"], LaunchTarget(["package.train", "--help"], module=True),
         Options(quiet=True)),
    ],
)  # fmt: skip
def test_single_process(
    arguments: list[str],
    target: LaunchTarget,
    options: Options,
    calls: list[tuple[Any, ...]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert main(monkeypatch, "run", *arguments) == 0
    assert calls == [("become", target, options)]


def test_what_needs_no_parser_is_understood_as_the_parser_does(
    calls: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    parse = parser.call
    words = ["--quiet", "--out", "-o", "d", "-m", "--", "train.py", "-x", "--module", "sleep", sys.executable]
    draw = random.Random(0)
    plain = 0
    for _ in range(300):
        asked = ["run", *draw.choices(words, k=draw.randrange(1, 6))]
        used: list[object] = []
        monkeypatch.setattr(parser, "call", lambda given, used=used: used.append(given) or 0)
        code = main(monkeypatch, *asked)
        if used:
            continue
        plain += 1
        found = calls.copy()
        calls.clear()
        assert parse(asked) == code, asked
        assert calls == found, asked
        calls.clear()
    assert plain > 100


@pytest.mark.parametrize("options", [[], ["--quiet"], ["--out", "d"], ["--"]], ids=" ".join)
def test_a_run_waits_for_no_parser(options: list[str], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    code = (
        "import os, sys\n"
        "heavy = ('typer', 'pydantic', 'numpy', 'torch', 'rich')\n"
        "os.execv = lambda *words: sys.exit(str([name for name in heavy if name in sys.modules]))\n"
        "from ddlprof.cli.app import main\n"
        "main()"
    )
    words = [sys.executable, "-c", code, "run", *options, "train.py"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.stderr == "[]\n"


def test_launched(calls: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(monkeypatch, "run", "--nproc-per-node", "2", "train.py", "--nnodes", "9") == 3
    assert calls == [("launch", torchrun.LauncherOptions("2"), LaunchTarget(["train.py", "--nnodes", "9"]), Options())]


def test_torchrun(calls: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(monkeypatch, "run", "--out", "d", "--", "torchrun", "--nproc-per-node=2", "train.py", "--out", "e") == 4
    assert calls == [("torchrun", ["--nproc-per-node=2", "train.py", "--out", "e"], Options(out="d"))]


def test_a_launcher(calls: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(monkeypatch, "run", "--out", "d", "--", "sleep", "--out", "e") == 5
    assert calls == [("command", ["sleep", "--out", "e"], Options(out="d"))]


def test_python_in_front_of_the_script(calls: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    """What ddlprof runs itself it does not run as a launcher."""
    main(monkeypatch, "run", "--", sys.executable, "-u", "train.py", "-x")
    main(monkeypatch, "run", "--nproc-per-node", "2", "--", sys.executable, "train.py", "-x")
    target = LaunchTarget(["train.py", "-x"])
    assert calls == [
        ("become", target, Options(), ["-u"]),
        ("launch", torchrun.LauncherOptions("2"), target, Options()),
    ]


@pytest.mark.parametrize(("value", "options"), [("1", None), ("0", Options()), ("", Options())])
def test_disabling(
    value: str, options: Options | None, calls: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DDLPROF_DISABLE", value)
    main(monkeypatch, "run", "train.py")
    assert calls == [("become", LaunchTarget(["train.py"]), options)]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["frobnicate"], "frobnicate"),
        (["--frobnicate"], "--frobnicate"),
        (["run"], "SCRIPT"),
        (["run", "--frobnicate", "train.py"], "--frobnicate"),
        (["run", "--out"], "--out"),
        (["run", "--stop-after", "0", "train.py"], "--stop-after"),
        (["run", "--stop-after=few", "train.py"], "--stop-after"),
        (["run", "--master-port", "99999", "train.py"], "--master-port"),
        (["run", "--nproc-per-node", "2", "torchrun", "train.py"], "torchrun"),
        (["run", "--data-call", "get_batch", "train.py"], "MODULE:FUNCTION"),
        (["run", "--data-call", ":get_batch", "train.py"], "MODULE:FUNCTION"),
        (["run", "--data-call", "data.py:get_batch()", "train.py"], "MODULE:FUNCTION"),
        (["run", "--nproc-per-node", "2", "sleep", "0"], "sleep"),
        (["train.py", "--epochs", "1"], "type: ddlprof run train.py --epochs 1"),
        (["torchrun", "train.py"], "type: ddlprof run torchrun train.py"),
        (["report", "run", "-o", "z.csv"], "CSV: ddlprof export"),
    ],
)
def test_one_line_for_a_wrong_command_line(
    arguments: list[str],
    says: str,
    calls: list[tuple[Any, ...]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(monkeypatch, *arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("ddlprof: ")
    assert error.count("\n") == 1
    assert says.lower() in error.lower()
    assert not calls
