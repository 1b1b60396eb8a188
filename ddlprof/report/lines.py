"""Lines of text for people: the one place where what is known becomes text, and where names are made harmless."""

from __future__ import annotations

import io
import json
import re
import textwrap
from collections.abc import Iterable
from typing import Any

from ddlprof.base.text import plain

_NOT_PRINTED_AS_IT_IS = re.compile(r"[^\x00-\x7e]")


def text_of(lines: Iterable[str]) -> str:
    """The lines, each with a line end: the only line ends that an output for people has."""
    return "".join(f"{plain(line)}\n" for line in lines)


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


def json_text(value: Any) -> str:
    """JSON for programs, readable for people, ending with a line end; NaN and infinity are refused.

    Names are as they are, but what cannot be seen is written as JSON's own escapes, also lone surrogates, which no
    file in UTF-8 can hold.
    """
    file = io.StringIO()  # json.dumps would first make a list of all the pieces, ten times as large
    json.dump(value, file, indent=1, ensure_ascii=False, allow_nan=False)
    return _NOT_PRINTED_AS_IT_IS.sub(lambda found: _json_character(found[0]), file.getvalue()) + "\n"


def _json_character(character: str) -> str:
    return character if plain(character) == character else json.dumps(character)[1:-1]
