"""The error a user can do something about."""

from __future__ import annotations


class UserError(Exception):
    """Bad input or surroundings: one line that says what is wrong and what to do. Never shown with a traceback."""
