"""The errors a user can do something about. Catalogue and recommender derive theirs from the same base."""

from __future__ import annotations

import contextlib
import sys

from ddlprof.model.plain import plain

_LINE_CHARACTERS = 1000


class DdlprofError(Exception):
    """The base of all errors that ddlprof, its catalogue and its recommender raise on purpose.

    The text is one line that says what is wrong and what to do. Anything else that is raised is a bug.
    """


class UserError(DdlprofError):
    """Bad input or surroundings: one line that says what is wrong and what to do. Never shown with a traceback."""


def complain(message: str) -> None:
    """Writes one line for the user to stderr; does nothing where the program has closed it."""
    with contextlib.suppress(Exception):
        sys.stderr.write(f"ddlprof: {_shortened(plain(message))}\n")


def _shortened(text: str) -> str:
    """A text too long for one readable line, most likely a name, without its middle."""
    half = _LINE_CHARACTERS // 2
    return text if len(text) <= _LINE_CHARACTERS else f"{text[:half]} ... {text[-half:]}"
