"""Prints the tables of docs/columns.md: `python -m scripts.lists.columns`. A test compares the two."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping

from ddlprof.report.plans.columns import PLAN_COLUMNS
from ddlprof.report.run.columns import RUN_COLUMNS, RunColumn


def tables() -> dict[str, str]:
    """A Markdown table of the columns of every CSV file, by its heading on the page."""
    found = {f"`{name}.csv`": _table(columns) for name, columns in RUN_COLUMNS.items()}
    return {**found, "`recommend --format csv`": _markdown((name, *each) for name, each in PLAN_COLUMNS.items())}


def _table(columns: Mapping[str, RunColumn]) -> str:
    return _markdown((name, each.meaning, each.empty) for name, each in columns.items())


def _markdown(rows: Iterable[tuple[str, ...]]) -> str:
    lines = ["| column | meaning | if empty |", "|---|---|---|"]
    lines += [f"| `{name}` | {meaning} | {empty} |" for name, meaning, empty in rows]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write("\n".join(f"### {heading}\n\n{text}" for heading, text in tables().items()))
