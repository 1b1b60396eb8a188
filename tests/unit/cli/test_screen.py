"""The same page on a terminal and in a pipe: colour is all that differs."""

from __future__ import annotations

import io
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ddlprof.cli.app import main
from ddlprof.cli.screen import fitted
from ddlprof.recommender.target import default_catalog
from tests.golden.runs import HERE, simple_run
from tests.unit.cli.commands import skip_without
from tests.unit.cli.hostile import NAME, write_job, write_overlay, write_run

EXAMPLE = str(HERE.parents[1] / "examples/jobs.csv")
CODES = re.compile(r"\x1b\[[0-9;]*m")


class Terminal(io.StringIO):
    """As far as anybody asks."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., str]:
    """What a command writes to stdout, on a terminal or not."""
    monkeypatch.setenv("DDLPROF_CATALOG", str(tmp_path / "none"))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("NO_COLOR", raising=False)

    def run(*words: str, terminal: bool = True, **environment: str) -> str:
        out = Terminal() if terminal else io.StringIO()
        monkeypatch.setattr(sys, "stdout", out)
        skip_without(words[0])
        monkeypatch.setattr(sys, "argv", ["ddlprof", *words])
        for name, value in {"TERM": "xterm-256color", **environment}.items():
            monkeypatch.setenv(name, value)
        main()
        return out.getvalue()

    return run


COMMANDS = (
    ["report", str(HERE / "two-ranks")],
    ["report", str(HERE / "two-ranks"), "--format", "table,json"],
    ["compare", str(HERE / "two-ranks"), str(HERE / "recorded/operators"), "--fail-on", "data=1us"],
    ["instances", "--cloud", "aws"],
    ["instances", "show", "p4d.24xlarge"],
    ["cluster", "simulate", "--trace", EXAMPLE, "--cluster", "2x4", "--policy", "fifo,srtf"],
)


@pytest.mark.parametrize(
    "words",
    [*COMMANDS, pytest.param(["doctor"], marks=pytest.mark.slow)],
    ids=lambda words: " ".join([*words[:1], *words[2:]]),
)
def test_a_terminal_shows_the_text_of_the_pipe_in_colour(words: list[str], shown: Callable[..., str]) -> None:
    coloured, plain = shown(*words), shown(*words, terminal=False)
    without_times = re.compile(r"\d[\d.]* (?:GiB|MiB)|\d+ \w+ ago|silent_s.*")
    assert without_times.sub("", CODES.sub("", coloured)) == without_times.sub("", fitted(plain, 100))
    assert CODES.search(coloured)
    assert "\x1b" not in plain


@pytest.mark.parametrize("columns", [30, 40, 60, 80, 120, 300])
def test_labelled_lines_are_as_wide_as_the_terminal(columns: int, shown: Callable[..., str]) -> None:
    words = ["report", str(HERE / "two-ranks")]
    plain, narrow = shown(*words, terminal=False), shown(*words, NO_COLOR="1", COLUMNS=str(columns))
    assert narrow.split() == plain.split()
    lines = narrow.splitlines()
    assert all(len(line) <= max(columns, 40) for line in lines if "next: " not in line)
    first = {line[:9] for line in plain.splitlines()}
    assert all(line[:9] in first or not line[:9].strip() for line in lines)


def test_rows_of_tables_are_left_whole() -> None:
    row = f"fifo  {'1.00  ' * 20}2\n"
    assert fitted(row, 60) == row


def test_a_program_gets_json_without_colour_from_a_terminal_too(shown: Callable[..., str]) -> None:
    assert "\x1b" not in shown("instances", "--format", "json")


def test_the_severity_of_a_verdict_has_a_colour(shown: Callable[..., str], tmp_path: Path) -> None:
    card = shown("report", str(HERE / "two-ranks"))
    assert "\x1b[1;33mmostly computing; the largest avoidable stall is data, 16 %\x1b[0m (warning;" in card
    card = shown("report", str(simple_run(tmp_path / "run", data_ms=9.5)))
    assert "\x1b[1;31mDATA-BOUND\x1b[0m (51 % of the step, critical;" in card
    narrow = shown("report", str(HERE / "two-ranks"), COLUMNS="50")
    assert "\x1b[1;33mmostly computing" in narrow


def test_heads_of_tables_and_the_best_of_a_column_stand_out(shown: Callable[..., str]) -> None:
    text = shown("cluster", "simulate", "--trace", EXAMPLE, "--cluster", "2x4", "--policy", "fifo,srtf")
    heads = re.findall(r"^\x1b\[1m(POLICY .*)\x1b\[0m$", text, re.MULTILINE)
    assert [head.split()[1] for head in heads] == ["MEAN", "GPU-h"]
    assert re.search(r"^srtf .*\x1b\[1;32m\d+\.\d+\*\x1b\[0m", text, re.MULTILINE)


def test_no_line_takes_long_to_colour() -> None:
    """A name may be made of what could be the head of a table."""
    from ddlprof.cli.screen import _STYLES

    line = "AB" + "  CD EF" * 200 + "!"
    began = time.process_time()
    for pattern, _ in _STYLES:
        re.findall(pattern, line, re.MULTILINE)
    assert time.process_time() - began < 5  # what grows exponentially takes years


def test_names_get_no_say_in_colour_or_lines(shown: Callable[..., str], tmp_path: Path) -> None:
    """Whatever is coloured, the rest is as in a pipe: rich reads no marks and no emoji into a name."""
    name = NAME + "[bold red]x[/] :smile: [link=http://x]y[/link]"
    overlay = str(write_overlay(tmp_path / "overlay", name))
    run, job = str(write_run(tmp_path / "run", name)), str(write_job(tmp_path / "job", name))
    work = ["--budget", "30d", "--samples", "1000"]
    default_catalog.cache_clear()
    for words in (["report", run], ["recommend", job, *work], ["instances", "show", name], ["instances"]):
        coloured = shown(*words, DDLPROF_CATALOG=overlay)
        if words[0] != "recommend":  # whose table is as wide as there is room
            assert CODES.sub("", coloured) == fitted(shown(*words, terminal=False, DDLPROF_CATALOG=overlay), 100)
        assert "[bold red]x[/] :smile:" in coloured


def test_an_encoding_that_lacks_a_letter_gets_an_escape(
    monkeypatch: pytest.MonkeyPatch, shown: Callable[..., str]
) -> None:
    from ddlprof.cli.screen import show

    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    show("a · b\n")
    sys.stdout.flush()
    assert raw.getvalue() == b"a \\xb7 b\n"


class LatinTerminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("colour", [True, False])
def test_a_terminal_that_is_not_utf_8_keeps_its_page(monkeypatch: pytest.MonkeyPatch, colour: bool) -> None:
    """In colour and without, and where a line is rewritten."""
    from ddlprof.cli.screen import console_on, show

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "" if colour else "1")
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", LatinTerminal(raw, encoding="latin-1"))
    show("100┤ · µs\n")
    console_on(sys.stdout).print("█ 50 %")
    sys.stdout.flush()
    text = CODES.sub("", raw.getvalue().decode("latin-1"))
    assert text == "100\\u2524 · µs\n\\u2588 50 %\n"
