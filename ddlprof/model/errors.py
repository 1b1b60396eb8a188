"""The error a user can do something about."""

from __future__ import annotations

import contextlib
import sys

from ddlprof.model.plain import plain


class UserError(Exception):
    """Bad input or surroundings: one line that says what is wrong and what to do. Never shown with a traceback."""


def complain(message: str) -> None:
    """One line on stderr for the user; where the program has no stderr any more, nobody hears it."""
    with contextlib.suppress(Exception):
        sys.stderr.write(f"ddlprof: {plain(message)}\n")
