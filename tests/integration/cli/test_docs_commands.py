"""The commands of README and docs, typed in a fresh folder, say what the pages show."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.docs.commands import PAGES, Typed, difference, differences, skipped, typed

IN_CI = ("docs/first-run.md", "docs/recommend.md", "docs/commands.md")


@pytest.mark.slow
def test_the_commands_of_the_readme() -> None:
    assert differences("README.md") == (3, [])


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[] if page in IN_CI else [pytest.mark.nightly])
        for page in PAGES[1:]
        if "/cases/" not in page
    ],
)
def test_the_commands_of_a_page(page: str) -> None:
    _, found = differences(page)
    assert found == []


def test_what_cannot_be_typed_has_a_reason(tmp_path: Path) -> None:
    for words, why in (
        ("ddlprof instances refresh", "refresh asks the clouds"),
        ("ddlprof report RUN --step-range 100:110", "100:110 is of a longer run"),
        ("ddlprof fuse nets:make_model --sweep lr=1", "nets:make_model is of a script of the reader's"),
        ("ddlprof predict mine.json -o z.json", "mine.json is not made on the page"),
        ("ddlprof predict RUN... -o z.json", "not a whole command of ours"),
        ("ddlprof doctor # or not", ""),
    ):
        assert skipped(words, tmp_path) == why


def test_what_differs_is_found() -> None:
    (command,) = typed("```\n$ ddlprof instances \\\n  show x\nPrice  3.5 USD\n...\nlast 7 days\n```\n")
    assert command.words == "ddlprof instances show x"
    assert difference(command, "Price  4,012.25\n USD and more\nlast 8 days\n") == ""
    assert "says" in difference(command, "Price  3.5 EUR\nlast 7 days\n")
    (works,) = typed("```\nddlprof report RUN   # again\nddlprof  a card\n```\n")
    assert works == Typed("ddlprof report RUN   # again", None)
    card = Typed("ddlprof run train.py", "ddlprof  train\nStep     3 ms\nVerdict  A\nAlso     b\n")
    assert difference(card, "ddlprof  other\nStep     4 s\nVerdict  C\n") == ""
    assert difference(card, "ddlprof  other\nStep     4 s\n") == "lines are missing: Verdict"
