"""What a notebook shows of a run."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

import ddlprof
from ddlprof.base.text import plain
from ddlprof.report.run.notebook import as_note
from tests.golden.runs import header, manifest, simple_run, write_rank
from tests.unit.cli.hostile import NAME, write_run

TWO_RANKS = Path(__file__).parents[3] / "golden/two-ranks"
SCRIPT = "</pre><script>alert(1)</script>\"'&" + NAME


class Tags(HTMLParser):
    """The tags and the text of a page, if each is closed in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.text = ""
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag != "br":
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_it_is_small_and_needs_nothing_else() -> None:
    run = ddlprof.load(TWO_RANKS)
    html = run._repr_html_()
    page = Tags(html)
    assert page.tags == {"div", "b", "table", "tr", "th", "td", "span", "br", "details", "summary", "pre"}
    assert len(html) < 10_000
    assert not re.search(r"url\(|src=|href=|<style", html)
    for words in ("95.2 ms a step", "the largest avoidable stall is data, 16 %", "straggler", "61.2 ms", "64 %"):
        assert words in page.text
    assert str(run) in page.text + "\n"


def test_names_are_escaped(tmp_path: Path) -> None:
    html = ddlprof.load(write_run(tmp_path, SCRIPT))._repr_html_()
    page = Tags(html)
    assert "script" not in page.tags
    assert plain(SCRIPT) in page.text
    assert all(character == "\n" or character.isprintable() for character in html)
    assert Tags(as_note(SCRIPT)).text == f"ddlprof {plain(SCRIPT)}"


def test_what_was_not_measured_says_so(tmp_path: Path) -> None:
    page = Tags(ddlprof.load(simple_run(tmp_path, data_ms=None))._repr_html_())
    assert re.search("data *not measured", page.text)
    assert "not measured" not in Tags(ddlprof.load(TWO_RANKS)._repr_html_()).text.partition("Card")[0]


def test_a_run_without_steps(tmp_path: Path) -> None:
    write_rank(tmp_path, header(), [])
    manifest().write(tmp_path)
    assert "no step was measured" in Tags(ddlprof.load(tmp_path)._repr_html_()).text


@pytest.mark.parametrize("measured", [0.0, 1e-4])
def test_small_shares(measured: float, tmp_path: Path) -> None:
    """`<0.1 %` is text, too."""
    Tags(ddlprof.load(simple_run(tmp_path, data_ms=measured))._repr_html_())
