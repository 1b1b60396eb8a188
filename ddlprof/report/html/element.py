"""HTML as values: the one place where text becomes HTML, so that no name of a user's can become markup.

`tag` takes strings and `Html`. A string is text and is escaped; only what `tag` made itself is taken as it is.
"""

from __future__ import annotations

import html
import json
from collections.abc import Container, Iterable, Sequence
from typing import Any, TypeAlias

from ddlprof.base.text import plain

_VOID = frozenset({"br", "hr", "input", "link", "meta"})
_ESCAPES = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}


class Html(str):
    """Text that is HTML already. Made by this module only."""

    __slots__ = ()


Content: TypeAlias = "str | Iterable[Content] | None"
"""What an element may hold: text, elements, lists of both, and None for nothing."""


def escaped(text: str) -> Html:
    """The text as HTML, in an element or in quotes; characters that cannot be seen are shown as escapes."""
    return text if isinstance(text, Html) else Html(html.escape(plain(text)))


def joined(*content: Content) -> Html:
    """The contents joined into one piece of HTML."""
    return Html("".join(_pieces(content)))


def tag(name: str, /, *content: Content, **attributes: str | int | bool | None) -> Html:
    """An element. Underscores in attribute names become hyphens; None and False omit one, True writes it bare."""
    words = [name]
    for key, value in attributes.items():
        key = key.rstrip("_").replace("_", "-")
        if value is True:
            words.append(key)
        elif value is not None and value is not False:
            words.append(f'{key}="{escaped(str(value))}"')
    begin = f"<{' '.join(words)}>"
    return Html(begin if name in _VOID else f"{begin}{joined(*content)}</{name}>")


def data_block(name: str, value: Any) -> Html:
    """Data for a script of the page, as an element that is never run. Raises ValueError for NaN and infinity.

    No string in it can end the element, and none holds a character that cannot be seen.
    """
    text = json.dumps(_shown(value), separators=(",", ":"), allow_nan=False).translate(_ESCAPES)
    return Html(f'<script type="application/json" id="{escaped(name)}">{text}</script>')


def raw(name: str, text: str) -> Html:
    """One of our own scripts or style sheets, as it is. Raises ValueError if it would end its element early."""
    if f"</{name}" in text.lower() or "<!--" in text or "\r" in text:
        raise ValueError(f"not fit for a <{name}> element")
    return Html(f"<{name}>{text}</{name}>")


def _pieces(content: Iterable[Content]) -> Iterable[str]:
    for each in content:
        if isinstance(each, str):
            yield escaped(each)
        elif each is not None:
            yield from _pieces(each)


def _shown(value: Any) -> Any:
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, dict):
        return {key: _shown(each) for key, each in value.items()}
    return [_shown(each) for each in value] if isinstance(value, (list, tuple)) else value


ABSENT = "-"
"""The text of a cell whose value was not measured."""
_TALL = 40
"""Rows of a table that scrolls inside of the page."""
_LONG = 24
"""Characters of a cell that may be broken anywhere."""


def table(caption: str, head: Sequence[str], rows: Sequence[Sequence[Content]], left: Container[int] = (0,)) -> Html:
    """A table whose first column names its rows. Columns of figures end at one edge; `left` are those of words."""

    def kind(number: int, cell: Content = None) -> str | None:
        if number not in left:
            return "figure"
        return "long" if isinstance(cell, str) and not isinstance(cell, Html) and len(cell) > _LONG else None

    cells = [tag("th", name, scope="col", class_=kind(n)) for n, name in enumerate(head)]
    lines = [
        tag(
            "tr",
            (
                tag("th", cell, scope="row", class_=kind(n, cell))
                if not n
                else tag("td", _cell(cell), class_=kind(n, cell))
                for n, cell in enumerate(row)
            ),
        )
        for row in rows
    ]
    whole = tag("table", tag("caption", caption), tag("thead", tag("tr", cells)), tag("tbody", lines))
    return tag(
        "div",
        whole,
        class_="scroll tall" if len(rows) > _TALL else "scroll",
        tabindex=0,
        role="region",
        aria_label=caption,
    )


def bullets(items: Iterable[Content]) -> Html:
    """A list of remarks."""
    return tag("ul", (tag("li", each) for each in items), class_="notes")


def facts(pairs: Sequence[tuple[str, Content]]) -> Html:
    """A list of names with their values, one a line."""
    return tag("dl", ([tag("dt", name), tag("dd", text)] for name, text in pairs), class_="facts")


def part(*name: Content) -> Html:
    """The name of a row that is a part of the one above it."""
    return tag("span", *name, class_="part")


def _cell(cell: Content) -> Content:
    return tag("span", ABSENT, class_="absent", title="not measured") if cell is None else cell
