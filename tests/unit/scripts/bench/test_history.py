"""A line of the history of benchmarks, made of what the benchmarks print."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from scripts.bench.history import COLUMNS, FIGURES, append, line_of, main
from scripts.bench.jobs import print_table

MACHINE = "Machine: a processor, 2 cores\n"
TABLES = {
    "overhead": (
        ["step", "workers", "µs a step, own clock", "on / off with helper"],
        [["2 ms", 0, 20, "1.03"], ["20 ms", 0, 91, "1.0050"], ["20 ms", 2, 95, "1.0060"],
         ["20 ms, off / off", 0, "", ""]],
    ),
    "start": (
        ["command", "ms", "more, ms"],
        [["ddlprof --help", 70, 50], ["import ddlprof", 30, 10], ["ddlprof run of an empty script", 260, 200],
         ["ddlprof report of 5,000 steps", 400, 380]],
    ),
    "merge": (
        ["job", "report s (wall)", "s (CPU)", "MiB", "export s (wall)", "s (CPU)", "MiB"],
        [["64 ranks", "2.1", "2.0", 150, "3.1", "3.0", 160]],
    ),
    "html": (["run", "s (wall)", "s (CPU)", "MB", "page MB"], [["8 ranks", "1.1", "1.0", 200, "0.90"]]),
}  # fmt: skip


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """What the benchmarks print, by the function that prints their tables."""
    found = {}
    for bench, (headers, rows) in TABLES.items():
        print_table(headers, rows)
        found[bench] = MACHINE + capsys.readouterr().out + "\n4 of 5 limits kept.\n"
    return found


def test_a_line_has_each_figure_of_its_row_and_column(printed: dict[str, str]) -> None:
    line = line_of(printed, "2026-01-02", "abc")
    assert tuple(line) == COLUMNS
    assert list(line.values()) == [
        "2026-01-02", "abc", "a processor, 2 cores", "1.0050", "91", "70", "200", "400", "2.0", "150", "1.0", "0.90",
    ]  # fmt: skip


def test_what_was_not_measured_is_empty(printed: dict[str, str]) -> None:
    line = line_of({**printed, "overhead": "Traceback", "merge": ""}, "2026-01-02", "abc")
    assert [name for name in COLUMNS if not line[name]] == [f.name for f in FIGURES if f.bench in ("overhead", "merge")]


def test_lines_are_kept_when_a_column_is_added(tmp_path: Path) -> None:
    path = tmp_path / "history.csv"
    path.write_text("date,commit,gone\n2026-01-01,abc,7\n")
    append(path, dict.fromkeys(COLUMNS, "1"))
    append(path, dict.fromkeys(COLUMNS, "2"))
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["date"] for row in rows] == ["2026-01-01", "1", "2"]
    assert [row["gone"] for row in rows] == ["7", "", ""]
    assert rows[0]["machine"] == ""


def test_a_figure_that_is_missing_is_told_by_the_exit_code(
    printed: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--file", str(tmp_path / "history.csv")]
    assert main(arguments, printed.__getitem__) == 0
    assert "merge_report_mib: 150" in capsys.readouterr().out
    assert main(arguments, {**printed, "start": ""}.__getitem__) == 1
    assert (tmp_path / "history.csv").read_text().count("\n") == 3
