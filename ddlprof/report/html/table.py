"""Tables of a page, which a keyboard can scroll."""

from __future__ import annotations

from collections.abc import Container, Sequence

from ddlprof.report.html.element import Content, Html, tag

ABSENT = "-"
"""A cell of something that was not measured."""
_LONG = 24
"""Characters of a cell that may be broken anywhere."""


def table(caption: str, head: Sequence[str], rows: Sequence[Sequence[Content]], left: Container[int] = (0,)) -> Html:
    """A table whose first column names its rows. Columns of figures end at one edge; `left` are those of words."""

    def kind(number: int, cell: Content = None) -> str | None:
        if number not in left:
            return "figure"
        return "long" if isinstance(cell, str) and len(cell) > _LONG else None

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
    return tag("div", whole, class_="scroll", tabindex=0, role="region", aria_label=caption)


def facts(pairs: Sequence[tuple[str, Content]]) -> Html:
    """Names and what they are, one a line."""
    return tag("dl", ([tag("dt", name), tag("dd", text)] for name, text in pairs), class_="facts")


def _cell(cell: Content) -> Content:
    return tag("span", ABSENT, class_="absent", title="not measured") if cell is None else cell
