"""Names from a user's machine cannot leave their place in a comment on a pull request."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from ddlprof.report.compare.data import FindingLine
from ddlprof.report.compare.markdown import code, render
from tests.unit.report.compare.made import compared

NAMES = [
    "a|b", "`a`", "``", "a``b`c```", "<script>alert(1)</script>", "@everyone", "#1", "[x](http://evil)",
    "</details>", "a\nb", "\\`", " ", "", "https://evil.example", "&lt;", "*b* _i_ ~s~", "``` x", "\x1b[31m\u202e",
]  # fmt: skip


def spans(line: str) -> tuple[list[str], str]:
    """The contents of a line's code spans by the rules of CommonMark, and what is left of the line without them."""
    found, rest, at = [], "", 0
    while at < len(line):
        opening = re.compile("`+").match(line, at)
        if opening is None:
            rest += line[at]
            at += 1
            continue
        closing = re.compile(f"(?<!`){opening[0]}(?!`)").search(line, opening.end())
        if closing is None:
            rest += opening[0]
            at = opening.end()
            continue
        found.append(line[opening.end() : closing.start()])
        at = closing.end()
    return found, rest


@pytest.mark.parametrize("name", NAMES)
def test_a_code_span_holds_any_text(name: str) -> None:
    found, rest = spans(f"before {code(name)} after")
    assert len(found) == 1
    assert rest == "before  after"


@pytest.mark.parametrize("name", [name for name in NAMES if name.strip()])
def test_names_stand_in_code_spans(name: str, tmp_path: Path) -> None:
    data = compared(tmp_path, name)
    data = replace(data, findings=[FindingLine("rule", name, "B")])
    text = render(data)
    harmless = render(replace(compared(tmp_path, "harmless"), findings=[FindingLine("rule", "harmless", "B")]))
    assert text.count("\n") == harmless.count("\n")
    outside = [[spans(line)[1] for line in each.splitlines()] for each in (text, harmless)]
    assert outside[0] == outside[1]


def test_tables_have_no_names(tmp_path: Path) -> None:
    rows = [line for line in render(compared(tmp_path, "a|b")).splitlines() if line.startswith("|")]
    assert len({row.count("|") for row in rows}) == 1
    assert "`" not in "".join(rows)


def test_details_are_closed_and_have_a_list(tmp_path: Path) -> None:
    text = render(compared(tmp_path, "name"))
    assert text.count("<details>") == text.count("</details>") == 2
    assert re.search(r"<details><summary>\d+ facts changed</summary>\n\n- ", text)
