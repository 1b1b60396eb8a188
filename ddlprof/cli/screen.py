"""The output of a command on the terminal: pages as plain text or in colour, and its progress on stderr.

Pages are made as plain text and coloured by their form, here and nowhere else. rich is imported for a terminal only.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO, cast

from ddlprof.base.errors import complain
from ddlprof.base.text import text_of
from ddlprof.base.units import duration, percent

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

LINE_EVERY_S = 30.0
"""The time between two lines about progress, where there is no terminal."""
_NARROWEST = 40
_LABELLED = re.compile(r"(?:(?: {2})?[A-Za-z][\w/-]*(?: [\w-]+)?  +|[A-Z][a-z]{7} )(?=\S)")
_COMMAND = "next: ddlprof "
"""A line with a command to copy is left to the terminal."""
_GAPS = re.compile(r"\S  +(?=\S)")
PATIENCE_S = 1.0
"""Work that is done by then needs no bar."""
_HEAD = r"[#A-Z][A-Z0-9]*(?:-h)?"
_STYLES = (
    (r"^(?!ddlprof )[A-Z][a-z]+(?: [a-z]+){0,2}(?=  +\S)|^Overhead(?= hooks)", "bold"),  # labels: Step, Rests on
    (r"^ddlprof(?=  )", "bold cyan"),
    (
        rf"^(?:{_HEAD}(?: {_HEAD})*(?: (?:h|min|s|ms|µs|USD|%))?(?: \[80 %\])?(?:  +|$)){{3,}}$",
        "bold",  # heads of tables
    ),
    (r"(?<= )[\d,.]+(?: ±[\d,.]+)?\*(?= |$)", "bold green"),  # the best of a column
    (r"^(?: {2})?(?:instance type|check|class|cloud|region|machine|what)(?:  +\S+(?: \S+)*)+$", "bold"),
    (r"(?<=^Verdict  )[^(]+(?=\s\((?!(?:[^;)]*,\s+)?(?:critical|warning);))", "bold green"),
    (r"(?<=^Verdict  )[^(]+(?=\s\((?:[^;)]*,\s+)?warning;)", "bold yellow"),
    (r"(?<=^Verdict  )[^(]+(?=\s\((?:[^;)]*,\s+)?critical;)", "bold red"),
    (r"(?<=^Gate     )BROKEN(?=  )", "bold red"),
    (r"^  (?:why|next)(?=  )", "dim"),
    (r"(?<=next: )ddlprof .*$", "cyan"),
    (r"(?<=  )ok(?=  )", "green"),  # of doctor
    (r"(?<=  )limited(?=  )", "yellow"),
    (r"(?<=  )missing(?=  )", "red"),
    (r"[│┤├┬┴┼┌┐└┘─]+", "dim"),
)
"""Patterns of a line and their styles; a later one goes on top. Names stand inside lines, never as labels."""


def terminal_columns() -> int | None:
    """The width of the terminal that standard output is; None where it is none."""
    return max(shutil.get_terminal_size().columns, _NARROWEST) if is_terminal(sys.stdout) else None


def show(text: str) -> None:
    """Writes a page for people to stdout; on a terminal its labelled lines are as wide as that."""
    if columns := terminal_columns():
        text = fitted(text, columns)
    if has_colour(sys.stdout):
        _print_in_colour(text)
        return
    echo(text)


def fitted(text: str, columns: int) -> str:
    """The text with its labelled lines (`Step     41.1 ms mean = ...`) wrapped beside their labels.

    Rows of tables and lines without a label stay as they are. Words longer than the width are not broken.
    """
    width = max(columns, _NARROWEST)
    return "".join(_wrapped(line, width) for line in text.splitlines(keepends=True))


def _wrapped(line: str, width: int) -> str:
    found = _LABELLED.match(line)
    if found is None or len(line.rstrip("\n")) <= width or _COMMAND in line:
        return line
    if len(_GAPS.findall(line, found.end())) > 1:  # a row of a table
        return line
    from ddlprof.report.text import wrapped

    return text_of(wrapped(line[found.end() :].rstrip("\n"), width, found[0], break_long_words=False))


def echo(text: str, err: bool = False) -> None:
    """Writes a text as it is to stdout, or to stderr where stdout is a script's."""
    stream = replacing(sys.stderr if err else sys.stdout)
    stream.write(text)
    stream.flush()


def replacing(stream: TextIO) -> TextIO:
    """The stream, with escapes for what its encoding lacks, as on terminals that are not UTF-8. All that ddlprof shows
    goes through it; a script's own output does not."""
    return cast(TextIO, _Replacing(stream))


class _Replacing:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._encoding = getattr(stream, "encoding", None) or "utf-8"

    def write(self, text: str) -> int:
        return self._stream.write(text.encode(self._encoding, "backslashreplace").decode(self._encoding))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def has_colour(stream: TextIO) -> bool:
    """Whether the stream is a terminal that wants colour, by the customs of NO_COLOR and TERM=dumb."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR")


def is_terminal(stream: TextIO) -> bool:
    """Whether the stream is a terminal on which lines can be rewritten."""
    return stream.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")


def console_on(stream: TextIO) -> Console:
    """A console that prints text as it is: no markup in square brackets, no emoji by name, no breaking of lines."""
    from rich.console import Console

    return Console(file=replacing(stream), highlight=False, markup=False, emoji=False, soft_wrap=True)


def _print_in_colour(text: str) -> None:
    from rich.text import Text

    coloured = Text(text, end="")
    for pattern, style in _STYLES:
        coloured.highlight_regex(re.compile(pattern, re.MULTILINE), style)
    console_on(sys.stdout).print(coloured, end="")


@contextmanager
def progress(what: str, at_once: bool = False, began_s: float | None = None) -> Iterator[Callable[[int, int], None]]:
    """Yields `advance(done, total)`: on a terminal a bar with the time left, which goes away at the end, elsewhere a
    line now and then, for logs. The first `advance(0, total)` says that what came before was no part of it.

    The bar appears once the work has taken a second, or `at_once` where its first part may take long or nobody advances
    it: it has the time so far until then. `began_s`: when the work began, where this is a later part of it.
    """
    start_s = said_s = time.monotonic() if began_s is None else began_s
    begun = False
    bar = _bar(what) if at_once and is_terminal(sys.stderr) else None

    def advance(done: int, total: int) -> None:
        nonlocal bar, start_s, said_s, begun
        now_s = time.monotonic()
        if not begun and not done:
            start_s = said_s = now_s
        begun = True
        if not done or now_s - start_s <= PATIENCE_S:
            return
        left_s = (now_s - start_s) * (total - done) / done
        if not is_terminal(sys.stderr):
            if now_s - said_s >= LINE_EVERY_S and done < total:
                said_s = now_s
                complain(f"{what}: {percent(done / total)}, about {duration(left_s)} left")
            return
        bar = bar or _bar(what)
        bar.update(bar.task_ids[0], completed=done, total=total, ends_s=now_s + left_s)

    try:
        yield advance
    finally:
        if bar is not None:
            bar.stop()


def _bar(what: str) -> Progress:
    """A display of the work under way on the terminal behind standard error, until it is stopped."""
    from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskProgressColumn, TextColumn
    from rich.text import Text

    class TimeLeft(ProgressColumn):
        """By all parts since the beginning: rich's own column forgets what is older than half a minute."""

        def render(self, task: Task) -> Text:
            ends_s = task.fields["ends_s"]
            if ends_s is None:
                return Text(f"{duration(round(task.elapsed or 0.0))} so far")
            return Text(f"{duration(round(max(ends_s - time.monotonic(), 0.0)))} left")

    shown = Progress(
        TextColumn("ddlprof: {task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeLeft(),
        console=console_on(sys.stderr),
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    shown.add_task(what, total=None, ends_s=None)
    shown.start()
    return shown
