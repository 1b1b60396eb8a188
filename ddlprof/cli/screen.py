"""What a command shows: plain text for a pipe or a file, and the same text in colour for a terminal.

Pages are made as plain text and coloured by their form, here and nowhere else. rich is imported for a terminal only.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console

_HEAD = r"[#A-Z][A-Z0-9]*(?:-h)?"
_STYLES = (
    (r"^(?!ddlprof )[A-Z][a-z]+(?: [a-z]+){0,2}(?=  +\S)", "bold"),  # labels: Step, Rests on
    (r"^ddlprof(?=  )", "bold cyan"),
    (
        rf"^(?:{_HEAD}(?: {_HEAD})*(?: (?:h|min|s|ms|µs|USD|%))?(?: \[80 %\])?(?:  +|$)){{3,}}$",
        "bold",  # heads of tables
    ),
    (r"(?<= )[\d,.]+(?: ±[\d,.]+)?\*(?= |$)", "bold green"),  # the best of a column
    (r"^(?: {2})?(?:instance type|check|class|region|machine|what)(?:  +\S+(?: \S+)*)+$", "bold"),
    (r"(?<=^Verdict  )[^(]+(?= \((?!(?:.*, )?(?:critical|warning);))", "bold green"),
    (r"(?<=^Verdict  )[^(]+(?= \((?:.*, )?warning;)", "bold yellow"),
    (r"(?<=^Verdict  )[^(]+(?= \((?:.*, )?critical;)", "bold red"),
    (r"(?<=^Gate     )BROKEN(?=  )", "bold red"),
    (r"^  (?:why|next)(?=  )", "dim"),
    (r"(?<=next: )ddlprof .*$", "cyan"),
    (r"(?<=  )ok(?=  )", "green"),  # of doctor
    (r"(?<=  )limited(?=  )", "yellow"),
    (r"(?<=  )missing(?=  )", "red"),
    (r"[│┤├┬┴┼┌┐└┘─]+", "dim"),
)
"""Patterns of a line and their styles; a later one goes on top. Every name is inside a line, so none forges a label."""


def show(text: str) -> None:
    """Writes a page for people to stdout."""
    if has_colour(sys.stdout):
        _print_in_colour(text)
        return
    echo(text)


def echo(text: str, err: bool = False) -> None:
    """Writes a text as it is to stdout, or to stderr beside what a script prints; what the encoding lacks is written as
    an escape."""
    stream = sys.stderr if err else sys.stdout
    encoding = getattr(stream, "encoding", None) or "utf-8"
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
    stream.flush()


def has_colour(stream: TextIO) -> bool:
    """Whether the stream is a terminal that wants colour, by the customs of NO_COLOR and TERM=dumb."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR")


def is_terminal(stream: TextIO) -> bool:
    """Whether lines can be rewritten there."""
    return stream.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")


def console_on(stream: TextIO) -> Console:
    """A console that prints text as it is: no markup in square brackets, no emoji by name, no breaking of lines."""
    from rich.console import Console

    return Console(file=stream, highlight=False, markup=False, emoji=False, soft_wrap=True)


def _print_in_colour(text: str) -> None:
    import re

    from rich.text import Text

    coloured = Text(text, end="")
    for pattern, style in _STYLES:
        coloured.highlight_regex(re.compile(pattern, re.MULTILINE), style)
    console_on(sys.stdout).print(coloured, end="")
