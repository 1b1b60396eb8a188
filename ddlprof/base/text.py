"""Makes text of unknown origin (names, paths, notes, errors) safe to show on one line of a terminal.

A host, a job or a machine may have any name. A line end in a name would fake a line of the report, an escape sequence
would control the terminal, and a bidirectional control would reverse the rest of the line. `plain` is called only where
a line for people is put together; programs get names unchanged.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
"""Characters that Unicode counts as letters, marks or symbols, but that are invisible."""


def plain(text: str) -> str:
    r"""The text with every character that cannot be seen as an escape: `\n`, `\x1b`, `\u202e`.

    A space stays. A second time changes nothing; whoever puts a line together may call it on a part and on the whole.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(character if is_visible(character) else _escaped(character) for character in text)


def is_visible(character: str) -> bool:
    """Whether the character is visible and does not change how others are shown."""
    return character.isprintable() and not _INVISIBLE.match(character)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def text_of(lines: Iterable[str]) -> str:
    """The lines, each with a line end: the only line ends that an output for people has."""
    return "".join(f"{plain(line)}\n" for line in lines)


def shell_word(word: str, path: bool = False) -> str:
    """The word as one types it into bash or zsh: on one line, and visible whatever it contains.

    A `path` that begins with a dash is written so that no command takes it for an option.
    """
    if path and word.startswith("-"):
        word = f"./{word}"
    if plain(word) == word:
        return shlex.quote(word)
    return "$'" + "".join(map(_in_ansi_quotes, word)) + "'"


def _in_ansi_quotes(character: str) -> str:
    if character in "\\'":
        return f"\\{character}"
    if is_visible(character):
        return character
    # Three octal digits are not extended by digits that follow. Bytes do not depend on the locale.
    return "".join(f"\\{byte:03o}" for byte in character.encode("utf-8", _encoding_errors(character)))


def _encoding_errors(character: str) -> str:
    """How to encode a text, so that bytes of a path that are not UTF-8 are restored."""
    return "surrogateescape" if "\udc80" <= character <= "\udcff" else "surrogatepass"


HIDDEN = "***"
USER_INFO = r"(?:[^/\s?#]*|[^\s/@:?#]+:(?!\d+(?:[/?#]|$))[^\s@]*)@"
"""A pattern of the user and password between scheme and host."""
_BEGIN = r"(?P<scheme>(?<![A-Za-z0-9+.-])[A-Za-z][A-Za-z0-9+.-]*:/{1,3}|(?<![\w:/.])//)"
"""Also with only one slash, as pathlib writes it, and without a scheme, as of a share."""
_USER = re.compile(_BEGIN + USER_INFO)
_QUERY = re.compile(rf"{_BEGIN}(?P<path>[^\s?#]*)[?#]\S*?(?=[:;,.)'\"]*(?:\s|$))")
_CONTAINER = re.compile(r"(?:abfs|wasb)s?:/{1,3}[^/\s?#:@]*@", re.IGNORECASE)
"""Azure's URLs have CONTAINER@ACCOUNT."""


def without_credentials(text: str) -> str:
    """The text with `***` in place of users, passwords and queries in URLs."""
    if ":/" not in text and "//" not in text:
        return text
    text = _USER.sub(lambda found: found[0] if _CONTAINER.fullmatch(found[0]) else f"{found['scheme']}{HIDDEN}@", text)
    return _QUERY.sub(rf"\g<scheme>\g<path>?{HIDDEN}", text)


def closest(name: str, known: Iterable[str]) -> str:
    """`; did you mean ...?` with the closest known name; empty if none is close."""
    from difflib import get_close_matches

    close = get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""
