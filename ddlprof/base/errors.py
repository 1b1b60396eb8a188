"""The errors a user can do something about. Catalogue and recommender derive theirs from the same base."""

from __future__ import annotations

import contextlib
import sys

from ddlprof.base.text import plain, without_credentials

_LINE_CHARACTERS = 1000


class DdlprofError(Exception):
    """The base of all errors that ddlprof, its catalogue and its recommender raise on purpose.

    The text is one line that says what is wrong and what to do, without credentials of URLs. Anything else that is
    raised is a bug.
    """

    def __str__(self) -> str:
        return without_credentials(super().__str__())


class UserError(DdlprofError):
    """Bad input or surroundings: one line that says what is wrong and what to do. Never shown with a traceback."""


class ReadingError(DdlprofError, ValueError):
    """A file that cannot be read, without its name: what is wrong, where in the file, and what was expected."""


def complain(message: str) -> None:
    """Writes one line for the user to stderr; does nothing where the program has closed it."""
    with contextlib.suppress(Exception):
        sys.stderr.write(f"ddlprof: {_shortened(plain(without_credentials(message)))}\n")


def _shortened(text: str) -> str:
    """A text too long for one readable line, most likely a name, without its middle."""
    half = _LINE_CHARACTERS // 2
    return text if len(text) <= _LINE_CHARACTERS else f"{text[:half]} ... {text[-half:]}"
