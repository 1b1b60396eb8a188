"""Appends one line with today's figures of four quick benchmarks to a CSV file, so that a slow drift is seen.

    python -m scripts.bench.history                          # some minutes; docs/benchmarks-history.csv
    python -m scripts.bench.history --file history.csv

The quick forms measure little, and machines of CI differ: a single line proves nothing, many in a row show a trend.
docs/benchmarks.md has the figures that were measured with care.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple

from scripts.bench.jobs import progress

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "docs" / "benchmarks-history.csv"
BENCHES = {"overhead": ("--quick",), "start": ("--pairs", "7"), "merge": ("--quick",), "html": ("--quick",)}
"""Which benchmarks of this folder are run, and with which options."""


class Figure(NamedTuple):
    """One cell of the table that a benchmark prints."""

    name: str
    """Its column in the history; the unit is the end of the name."""
    bench: str
    row: tuple[str, ...]
    """How the row begins, cell by cell; the first row that does so counts."""
    column: str


FIGURES = (
    Figure("overhead_20ms_ratio", "overhead", ("20 ms", "0"), "on / off with helper"),
    Figure("overhead_20ms_hooks_us", "overhead", ("20 ms", "0"), "µs a step, own clock"),
    Figure("start_help_ms", "start", ("ddlprof --help",), "ms"),
    Figure("start_run_more_ms", "start", ("ddlprof run",), "more, ms"),
    Figure("start_report_ms", "start", ("ddlprof report",), "ms"),
    Figure("merge_report_cpu_s", "merge", (), "s (CPU)"),
    Figure("merge_report_mib", "merge", (), "MiB"),
    Figure("html_page_cpu_s", "html", (), "s (CPU)"),
    Figure("html_page_mb", "html", (), "page MB"),
)
COLUMNS = ("date", "commit", "machine", *(figure.name for figure in FIGURES))


def output_of(bench: str) -> str:
    """What a benchmark prints. A missed limit is no error here: the figure says it."""
    progress(f"running {bench}")
    words = [sys.executable, "-m", f"scripts.bench.{bench}", *BENCHES[bench]]
    return subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False).stdout


def cells_of(line: str) -> list[str]:
    """The cells of a line of a Markdown table."""
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def value(figure: Figure, printed: str) -> str:
    """The figure in what its benchmark printed; empty, as all that was not measured, if it is not there."""
    lines = [cells_of(line) for line in printed.splitlines() if line.startswith("| ")]
    if not lines or figure.column not in lines[0]:
        return ""
    place = lines[0].index(figure.column)
    rows = (row for row in lines[1:] if all(cell.startswith(own) for cell, own in zip(row, figure.row, strict=False)))
    return next((row[place] for row in rows if len(row) > place), "")


def machine_of(printed: Mapping[str, str]) -> str:
    """The machine, as the benchmarks describe it."""
    lines = [line for text in printed.values() for line in text.splitlines() if line.startswith("Machine: ")]
    return lines[0].removeprefix("Machine: ") if lines else ""


def line_of(printed: Mapping[str, str], date: str, commit: str) -> dict[str, str]:
    """One line of the history, made of what the benchmarks printed."""
    figures = {figure.name: value(figure, printed.get(figure.bench, "")) for figure in FIGURES}
    return {"date": date, "commit": commit, "machine": machine_of(printed), **figures}


def append(path: Path, line: Mapping[str, str]) -> None:
    """Adds the line to the file, which keeps its lines if columns were added since they were written."""
    old: list[dict[str, str]] = []
    if path.exists():
        with path.open(newline="", encoding="utf-8") as file:
            old = list(csv.DictReader(file))
    columns = list(dict.fromkeys([*COLUMNS, *(name for row in old[:1] for name in row)]))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows([*old, line])


def main(arguments: Sequence[str] | None = None, output: Callable[[str], str] = output_of) -> int:
    """Exit code 1 if a figure could not be read: the line is appended all the same."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", type=Path, default=FILE)
    path: Path = parser.parse_args(arguments).file
    commit = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    date = datetime.now(timezone.utc).strftime("%Y-%m-%d")
    line = line_of({bench: output(bench) for bench in BENCHES}, date, commit.stdout.strip())
    append(path, line)
    missing = [name for name in COLUMNS if not line[name]]
    print(*(f"{name}: {line[name] or 'not measured'}" for name in COLUMNS), sep="\n")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
