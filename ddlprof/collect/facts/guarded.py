"""Looking at what may be anything: what cannot be told is None."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def attempt(read: Callable[[], T]) -> T | None:
    """What `read` returns; None where it raises."""
    try:
        return read()
    except Exception:
        return None


def class_names(value: Any) -> list[str]:
    """Of the value's class and those it is derived from: libraries are recognised by them without being imported."""
    return [cls.__name__ for cls in type(value).__mro__]
