"""Prints the tables of docs/diagnosis.md: `python -m scripts.lists.rules`. A test compares them with the page."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ddlprof.analysis.rules.apply import GROUPS
from ddlprof.analysis.rules.rule import Rule


def table(rules: Sequence[Rule]) -> str:
    """One group as a Markdown table."""
    lines = ["| rule | finds | speaks from | because | needs | says nothing where |", "|---|---|---|---|---|---|"]
    lines += [
        f"| `{r.name}` | {r.finds} | {r.threshold} | {r.reason} | {r.samples} | {r.abstains} |" for r in rules
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def main() -> None:
    """All groups."""
    for name, rules in GROUPS.items():
        sys.stdout.write(f"### {name}\n\n{table(rules)}\n")


if __name__ == "__main__":
    main()
