"""What every hook is made of: `replace` puts a function of ours in place of another, and its result puts that back."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ddlprof.collect.drops import HOOK

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


def fail_open(function: Callable[..., Any], recorder: Any) -> Callable[..., None]:
    """Wraps work of ours in the training thread that has no result: what fails is counted, and not measured."""

    @functools.wraps(function)
    def attempt(*args: Any) -> None:
        try:
            function(*args)
        except Exception as error:
            lose(recorder, function, error)

    return attempt


def quiet_method(function: Callable[..., Any]) -> Callable[..., None]:
    """Does what `fail_open` does, for a method of an object that has a `recorder`."""

    @functools.wraps(function)
    def attempt(this: Any, *args: Any) -> None:
        try:
            function(this, *args)
        except Exception as error:
            lose(this.recorder, function, error)

    return attempt


def lose(recorder: Any, function: Any, error: Exception) -> None:
    """Counts work of ours that failed."""
    name = getattr(function, "__qualname__", type(function).__qualname__).replace(".<locals>", "")
    recorder.drops.add(HOOK, f"{name}: {type(error).__name__}: {error}")
