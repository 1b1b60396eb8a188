"""The lines of a text, told apart by how they begin, without a string for each."""

from __future__ import annotations

import numpy as np


class Lines:
    """The lines of a text with their ends; `begin_so` says which begin with `prefix` and are not too long."""

    def __init__(self, text: bytes, prefix: bytes, longest: int) -> None:
        self._text = text
        letters = np.frombuffer(text, dtype=np.uint8)
        ends = np.flatnonzero(letters == ord("\n"))
        begins = np.concatenate([[0], ends + 1])
        self._begins = begins
        """And after the last line, the end of the text."""
        self.begin_so = ends - begins[:-1] <= longest
        for place, letter in enumerate(prefix):  # a shorter line ends within them, and has another letter there
            self.begin_so &= letters[np.minimum(begins[:-1] + place, len(letters) - 1)] == letter
        self.before = np.concatenate([[0], np.cumsum(self.begin_so)])
        """How many such lines are before each line, and in all."""

    def __len__(self) -> int:
        return len(self.begin_so)

    def text_of(self, index: int) -> str:
        """A line without its end; what is no text is replaced."""
        return self._text[self._begins[index] : self._begins[index + 1] - 1].decode(errors="replace")

    def joined(self, until: int) -> bytes:
        """The lines before the line `until` that begin so."""
        edges = np.flatnonzero(np.diff(self.begin_so[:until], prepend=False, append=False))
        places = self._begins[edges].tolist()
        return b"".join(self._text[begin:end] for begin, end in zip(places[::2], places[1::2], strict=True))
