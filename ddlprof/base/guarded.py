"""Inspects objects of unknown kind without raising: what cannot be read is None."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


Failed = Callable[[str, Exception], None]
"""Called with the name of a fact that could not be read, and the error."""


def nobody(what: str, error: Exception) -> None:
    """Ignores failures: for facts that are often missing."""


def attempt(read: Callable[[], T], what: str = "", failed: Failed = nobody) -> T | None:
    """The result of `read`; None if it raises, after calling `failed` with `what` and the error."""
    try:
        return read()
    except Exception as error:
        failed(what, error)
        return None


def dead_reference() -> None:
    """Stands for a weak reference whose object is gone: calling it returns None."""


def class_names(value: Any) -> list[str]:
    """The names of the class of `value` and of its bases, by which libraries are recognised without importing them."""
    return [cls.__name__ for cls in type(value).__mro__]
