"""One file a hook: `install(...) -> uninstall`. Hooks tell the recorder what begins and ends; they decide nothing.

A wrapper calls the original whatever happens to us, and returns at once under `torch.compiler.is_compiling()`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Uninstall = Callable[[], None]


def replace(owner: Any, name: str, value: Any) -> Uninstall:
    """Sets an attribute of a module or class; the result puts the original back if nobody else replaced ours."""
    original = vars(owner)[name]
    setattr(owner, name, value)

    def restore() -> None:
        if vars(owner).get(name) is value:
            setattr(owner, name, original)

    return restore


def all_of(*uninstalls: Uninstall) -> Uninstall:
    """Undoes several installations, the last first."""

    def uninstall() -> None:
        for each in reversed(uninstalls):
            each()

    return uninstall


def batch_size(value: Any, depth: int = 0) -> int | None:
    """Samples in a batch: the first dimension of the first tensor in it, else the length of a list; None if unknown."""
    shape = getattr(value, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else None
    if depth < 3:
        items = value.values() if isinstance(value, dict) or hasattr(value, "keys") else value
        if isinstance(items, (list, tuple)) or items is not value:
            for item in items:
                size = batch_size(item, depth + 1)
                if size is not None:
                    return size
            if isinstance(value, (list, tuple)) and depth == 0:
                return len(value)
    return None
