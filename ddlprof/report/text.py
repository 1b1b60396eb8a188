"""Text for people: the one place where lines become a text and names from elsewhere are made harmless."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Container, Sequence

from ddlprof.base.text import plain

_GAP = 2
_UNBOUNDED = 1_000_000
"""No limit: lines are as wide as they need to be. A terminal breaks them, a file has them whole."""


def wrapped(text: str, width: int, first: str = "", break_long_words: bool = True) -> list[str]:
    """Lines of at most `width` characters, the first one after `first`, the others below it."""
    return textwrap.wrap(
        plain(text),
        width,
        initial_indent=first,
        subsequent_indent=" " * len(first),
        break_long_words=break_long_words,
        break_on_hyphens=False,
    )


def labelled(label: str, *texts: str, width: int, indent: int = 9) -> list[str]:
    """Paragraphs of at most `width` characters beside a column of labels: the first has the label, the others none."""
    labels = [label, *[""] * (len(texts) - 1)] if texts else []
    return [
        line for name, text in zip(labels, texts, strict=True) for line in wrapped(text, width, f"{name:<{indent}}")
    ]


def aligned(rows: Sequence[Sequence[str]], right: Container[int] = ()) -> list[str]:
    """Two spaces between columns; columns whose numbers are in `right` end at one edge, as figures do."""
    if not rows:
        return []
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, _GAP, 0, 0))
    for number in range(len(rows[0])):
        table.add_column(justify="right" if number in right else "left", no_wrap=True)
    columns = zip(*rows, strict=True)
    table.add_row(*(Text("\n".join(map(plain, column))) for column in columns))  # in one row: ten times as fast
    console = Console(file=io.StringIO(), width=_UNBOUNDED, color_system=None, legacy_windows=False, _environ={})
    with console.capture() as captured:
        console.print(table)
    return [line.rstrip() for line in captured.get().splitlines()]
