"""Text becomes HTML in one place: whatever a name is, it stays text."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlprof.base.text import plain
from ddlprof.report.html.element import data_block, escaped, facts, joined, raw, table, tag

HOSTILE = [
    "<script>alert(1)</script>",
    "</script>",
    '" onload="x',
    "' x",
    "&amp;",
    "<!--",
    "]]>",
    "\u2028\u202e\x00",
    "`${1}",
]


class Read(HTMLParser):
    """What a browser would read."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


@given(st.one_of(st.text(), st.sampled_from(HOSTILE)))
def test_text_stays_text(text: str) -> None:
    read = Read(tag("p", text, title=text))
    assert read.tags == [("p", {"title": plain(text)})]
    assert read.text == plain(text)


def test_elements_are_kept_as_they_are_and_nothing_is_left_out() -> None:
    inner = tag("b", "1 < 2")
    assert tag("p", [inner, None, ["&", inner]], class_="x", data_a=1, hidden=True, open=False, id=None) == (
        '<p class="x" data-a="1" hidden><b>1 &lt; 2</b>&amp;<b>1 &lt; 2</b></p>'
    )
    assert tag("br") == "<br>"
    assert escaped(inner) is inner
    assert joined("<", inner) == "&lt;<b>1 &lt; 2</b>"


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text() | st.sampled_from(HOSTILE),
        lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from("abc"), inner),
    )
)
def test_data_cannot_leave_its_element(value: Any) -> None:
    block = data_block("d", value)
    inside = block.removeprefix('<script type="application/json" id="d">').removesuffix("</script>")
    assert not set("<>&\u2028\u2029") & set(inside)
    assert inside.isascii()
    assert json.loads(inside) == json.loads(json.dumps(_plain(value)))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return plain(value) if isinstance(value, str) else value


def test_data_that_javascript_cannot_read_is_refused() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        data_block("d", [float("nan")])


@pytest.mark.parametrize("text", ["a</script>b", "a</SCRIPT", "<!--", "a\rb"])
def test_scripts_of_our_own_cannot_end_early(text: str) -> None:
    with pytest.raises(ValueError, match="not fit"):
        raw("script", text)


def test_tables_name_rows_and_columns() -> None:
    read = Read(table("what <it> is", ["a", "b"], [["<r>", None], ["s", "2"]]))
    assert [attributes.get("scope") for name, attributes in read.tags if name == "th"] == ["col", "col", "row", "row"]
    assert "what <it> is" in read.text
    assert "<r>" in read.text
    assert ("span", {"class": "absent", "title": "not measured"}) in read.tags
    assert Read(facts([("<a>", "&b")])).text == "<a>&b"
