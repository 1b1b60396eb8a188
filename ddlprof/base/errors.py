"""Errors about which a user can do something. Those of the catalogue and the recommender derive from the same base."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

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
    """Wrong input or environment.

    The text is one line that says what is wrong and what to do; shown without traceback.
    """


class ReadingError(DdlprofError, ValueError):
    """Why a file cannot be read: what is wrong, where in the file, and what was expected. Without the file's name."""


@contextlib.contextmanager
def refusing(what: str, advice: str = "") -> Iterator[None]:
    """Turns what the system refuses within, an `OSError`, into a UserError: `what`, the reason, and what to do."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{what}: {error.strerror or error}{advice}") from None


@contextlib.contextmanager
def naming(place: object, advice: str = "") -> Iterator[None]:
    """Turns a `ReadingError` within into a UserError: the file or the place in it, the reason, and what to do."""
    try:
        yield
    except ReadingError as error:
        raise UserError(f"{place}: {error}{advice}") from None


def complain(message: str) -> None:
    """Writes one line for the user to stderr. Does nothing if the program has closed it."""
    with contextlib.suppress(Exception):
        sys.stderr.write(f"ddlprof: {_shortened(plain(without_credentials(message)))}\n")


def _shortened(text: str) -> str:
    """Removes the middle of a text that is too long for one line (most likely a long name)."""
    half = _LINE_CHARACTERS // 2
    return text if len(text) <= _LINE_CHARACTERS else f"{text[:half]} ... {text[-half:]}"
