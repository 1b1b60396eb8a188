"""Words as they are typed into a shell."""

from __future__ import annotations

import shlex

from ddlprof.model.plain import is_visible, plain


def shell_word(word: str, path: bool = False) -> str:
    """The word as it is typed into bash or zsh, on one line and visible whatever is in it.

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
    # Three octal digits, which nothing that follows can lengthen; bytes, so that the locale does not matter.
    return "".join(f"\\{byte:03o}" for byte in character.encode("utf-8", _encoding_errors(character)))


def _encoding_errors(character: str) -> str:
    """How to encode a text: bytes of a path that are no UTF-8 become themselves again."""
    return "surrogateescape" if "\udc80" <= character <= "\udcff" else "surrogatepass"
