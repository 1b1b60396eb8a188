"""Names from a user's machine cannot leave their place in a comment on a pull request."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

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


def test_details_are_closed_and_have_a_list(tmp_path: Path) -> None:
    text = render(compared(tmp_path, "name"))
    assert text.count("<details>") == text.count("</details>") == 2
    assert re.search(r"<details><summary>\d+ facts changed</summary>\n\n- ", text)
