"""The commands of README and docs, typed in a fresh folder, say what the pages show."""

from __future__ import annotations

import pytest

from scripts.docs.commands import PAGES, Typed, difference, differences, typed


def test_the_commands_of_the_readme() -> None:
    assert differences("README.md") == (1, [])


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES[1:] if "/cases/" not in page])
def test_the_commands_of_a_page(page: str) -> None:
    _, found = differences(page)
    assert found == []


def test_what_differs_is_found() -> None:
    (command,) = typed("```\n$ ddlprof instances \\\n  show x\nPrice  3.5 USD\n...\nlast 7 days\n```\n")
    assert command.words == "ddlprof instances show x"
    assert difference(command, "Price  4,012.25\n USD and more\nlast 8 days\n") == ""
    assert "says" in difference(command, "Price  3.5 EUR\nlast 7 days\n")
    card = Typed("ddlprof run train.py", "ddlprof  train\nStep     3 ms\nVerdict  A\nAlso     b\n")
    assert difference(card, "ddlprof  other\nStep     4 s\nVerdict  C\n") == ""
    assert difference(card, "ddlprof  other\nStep     4 s\n") == "lines are missing: Verdict"
