"""Inspection of objects that may be anything: what cannot be told is None."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


Failed = Callable[[str, Exception], None]
"""Is told of a fact that could not be read, by its name, and why."""


def nobody(what: str, error: Exception) -> None:
    """Ignores failures, for facts that are often not there."""


def attempt(read: Callable[[], T], what: str = "", failed: Failed = nobody) -> T | None:
    """What `read` returns; None where it raises, which `failed` is told."""
    try:
        return read()
    except Exception as error:
        failed(what, error)
        return None


def dead_reference() -> None:
    """Stands for a weak reference whose object is gone: calling it returns None."""


def class_names(value: Any) -> list[str]:
    """Names of the value's class and its bases: libraries are recognised by them without being imported."""
    return [cls.__name__ for cls in type(value).__mro__]
