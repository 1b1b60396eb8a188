"""A table is described once, as a list of columns beside its data; text, CSV, JSON and HTML are made of it here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ddlprof.base.units import NOT_KNOWN, significant
from ddlprof.report.json_csv import csv_text
from ddlprof.report.text import aligned

if TYPE_CHECKING:
    from ddlprof.report.html.element import Content, Html

_Row = TypeVar("_Row")


@dataclass(frozen=True)
class Column(Generic[_Row]):
    """A column: for programs its name and values as they are, for people its texts. None is not known."""

    name: str
    value: str | Callable[[_Row], Any]
    """How to get it from a row, or the path to it: `step.low_s`, which is None where `step` is."""
    words: bool = False
    """Whether people read words in it: figures end at one edge, words begin at one."""

    def of(self, row: _Row) -> Any:
        if not isinstance(self.value, str):
            return self.value(row)
        found: Any = row
        for name in self.value.split("."):
            if found is not None:
                found = found.get(name) if isinstance(found, Mapping) else getattr(found, name)
        return found


def fields(*texts: str) -> list[Column[Any]]:
    """Columns of paths: `gpus` stands for the row's own `gpus`, `step_low_s=step.low_s` for a path under this name."""
    return [Column(name, path or name) for name, _, path in (text.partition("=") for text in texts)]


class Table(Generic[_Row]):
    """Columns side by side."""

    def __init__(self, *columns: Column[_Row]) -> None:
        self.columns = columns

    @property
    def heads(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    def record(self, row: _Row) -> dict[str, Any]:
        """The values of a row by name, for JSON."""
        return {column.name: column.of(row) for column in self.columns}

    def records(self, rows: Iterable[_Row]) -> list[dict[str, Any]]:
        """The same of all rows."""
        return list(map(self.record, rows))

    def csv(self, rows: Iterable[_Row]) -> str:
        """A CSV file with one header row; an empty field is not known."""
        return csv_text(self.heads, ([column.of(row) for column in self.columns] for row in rows))

    def lines(self, rows: Iterable[_Row], *more: Sequence[str]) -> list[str]:
        """A heading, a line for each row, and the lines of `more`, whose cells are texts already."""
        cells = [[_text(column.of(row)) for column in self.columns] for row in rows]
        right = {number for number, column in enumerate(self.columns) if not column.words}
        return aligned([self.heads, *cells, *more], right)

    def html(self, caption: str, rows: Iterable[_Row], *more: Sequence[Content]) -> Html:
        """The same as an element of a page."""
        from ddlprof.report.html.element import table

        cells: list[Sequence[Content]] = [[_content(column.of(row)) for column in self.columns] for row in rows]
        left = {number for number, column in enumerate(self.columns) if column.words}
        return table(caption, self.heads, [*cells, *more], left)


def _text(value: Any) -> str:
    """A figure with three digits or more, a number with commas."""
    if value is None:
        return NOT_KNOWN
    if isinstance(value, int):
        return f"{value:,}"
    return significant(value) if isinstance(value, float) else str(value)


def _content(value: Any) -> Content:
    found: Content = _text(value) if isinstance(value, (int, float)) else value
    return found
