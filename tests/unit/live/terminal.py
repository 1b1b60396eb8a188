"""A terminal in a few lines: what a person would see after some output. Knows what ddlprof and progress bars write."""

from __future__ import annotations

import re

_SEQUENCE = re.compile(r"\x1b(?:\[(?P<numbers>[\d;?]*)(?P<final>[A-Za-z])|(?P<single>[78D]))")


class Terminal:
    """Rows of characters, a cursor, and the rows that scroll."""

    def __init__(self, width: int = 60, height: int = 16) -> None:
        self.width, self.height = width, height
        self.rows = [""] * height
        self.scrolled: list[str] = []
        self.row = self.column = 0
        self.top, self.bottom = 0, height - 1
        self._saved = (0, 0)

    def feed(self, text: str) -> None:
        position = 0
        while position < len(text):
            found = _SEQUENCE.match(text, position)
            if found:
                self._obey(found)
                position = found.end()
            else:
                assert text[position] != "\x1b", repr(text[position : position + 10])
                self._put(text[position])
                position += 1

    def resize(self, width: int, height: int) -> None:
        """Rows are added or lost at the bottom, above the cursor if they must; the region is the whole again."""
        while self.row >= height:
            self.scrolled.append(self.rows.pop(0))
            self.row -= 1
        self.rows = [row[:width] for row in (self.rows + [""] * height)[:height]]
        self.width, self.height, self.top, self.bottom = width, height, 0, height - 1

    def _put(self, character: str) -> None:
        if character == "\r":
            self.column = 0
        elif character == "\n":  # with the carriage return that the kernel adds
            self.column = 0
            self._down()
        else:
            if self.column >= self.width:
                self.column = 0
                self._down()
            row = self.rows[self.row].ljust(self.column)
            self.rows[self.row] = row[: self.column] + character + row[self.column + 1 :]
            self.column += 1

    def _down(self) -> None:
        if self.row == self.bottom:
            gone = self.rows.pop(self.top)
            if self.top == 0:
                self.scrolled.append(gone)
            self.rows.insert(self.bottom, "")
        elif self.row < self.height - 1:
            self.row += 1

    def _obey(self, found: re.Match[str]) -> None:
        if found["single"]:
            {"7": self._save, "8": self._restore, "D": self._down}[found["single"]]()
            return
        numbers = [int(number) if number else 0 for number in found["numbers"].replace("?", "").split(";")]
        final = found["final"]
        if final == "r":
            self.top = max(numbers[0], 1) - 1
            self.bottom = (numbers[1] if len(numbers) > 1 else self.height) - 1
            self.row = self.column = 0
        elif final == "A":
            self.row = max(self.row - max(numbers[0], 1), self.top if self.row >= self.top else 0)
        elif final == "H":
            self.row, self.column = max(numbers[0], 1) - 1, (numbers[1] if len(numbers) > 1 else 1) - 1
        elif final == "K":
            self.rows[self.row] = "" if numbers[0] == 2 else self.rows[self.row][: self.column]
        elif final == "J":
            self.rows[self.row :] = [self.rows[self.row][: self.column], *[""] * (self.height - self.row - 1)]
        else:
            assert final in "mhl", final  # colours; the cursor is hidden and shown

    def _save(self) -> None:
        self._saved = (self.row, self.column)

    def _restore(self) -> None:
        self.row, self.column = self._saved

    @property
    def seen(self) -> list[str]:
        """All lines so far, what has scrolled away included, without empty ones at the end."""
        lines = [line.rstrip() for line in [*self.scrolled, *self.rows]]
        while lines and not lines[-1]:
            lines.pop()
        return lines
