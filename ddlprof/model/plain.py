"""Text from elsewhere (names, paths, notes, errors) made fit for one line of a terminal.

A host, a job or a machine of the catalogue may be called anything. A line end in a name would forge a line of the
report, an escape sequence would reach the terminal, and a bidirectional control would turn the rest of the line round.
`plain` is called where a line is put together for people, and nowhere else: programs get names as they are.
"""

from __future__ import annotations

import re

_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
"""Characters that Unicode calls letters, marks or symbols, but that cannot be seen."""


def plain(text: str) -> str:
    r"""The text with every character that cannot be seen as an escape: `\n`, `\x1b`, `\u202e`.

    A space stays. A second time changes nothing; whoever puts a line together may call it on a part and on the whole.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(character if is_visible(character) else _escaped(character) for character in text)


def is_visible(character: str) -> bool:
    """Whether a person sees the character, and nothing but the character."""
    return character.isprintable() and not _INVISIBLE.match(character)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
