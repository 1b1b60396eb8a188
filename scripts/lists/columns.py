"""Prints the table of columns of docs/measurement.md: `python -m scripts.lists.columns`. A test compares the two."""

from __future__ import annotations

import sys

from ddlprof.report.run.tables import described_columns


def table() -> str:
    """The columns of `steps.csv` as a Markdown table."""
    lines = ["| column | meaning | if empty |", "|---|---|---|"]
    lines += [f"| `{name}` | {each.meaning} | {each.empty} |" for name, each in described_columns().items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(table())
