"""How hooks are installed and removed: `replace` puts a function of ours in place of another, and returns a function
that puts the original back; `Hooking` does so for all hooks of a session.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from ddlprof.collect.drops import HOOK
from ddlprof.collect.process.frames import stack_of_frame, stack_of_thread, threads

Uninstall = Callable[[], None]

_left: list[Any] = []
"""Handles of hooks that do nothing any more and wait to be removed."""


def replace(owner: Any, name: str, value: Any) -> Uninstall:
    """Sets an attribute of a module or class; returns what restores the original unless ours was replaced meanwhile."""
    original = vars(owner)[name]
    setattr(owner, name, value)

    def restore() -> None:
        if vars(owner).get(name) is value:
            setattr(owner, name, original)

    return restore


def all_of(*uninstalls: Uninstall) -> Uninstall:
    """Returns a function that undoes several installations, the last one first."""

    def uninstall() -> None:
        for each in reversed(uninstalls):
            each()

    return uninstall


def fail_open(function: Callable[..., Any], recorder: Any) -> Callable[..., None]:
    """Wraps a function of ours that has no result: if it fails, the failure is counted, and the training goes on."""

    @functools.wraps(function)
    def attempt(*args: Any) -> None:
        try:
            function(*args)
        except Exception as error:
            lose(recorder, function, error)

    return attempt


def quiet_method(function: Callable[..., Any]) -> Callable[..., None]:
    """`fail_open` for a method of an object that has a `recorder`."""

    @functools.wraps(function)
    def attempt(this: Any, *args: Any) -> None:
        try:
            function(this, *args)
        except Exception as error:
            lose(this.recorder, function, error)

    return attempt


def lose(recorder: Any, function: Any, error: Exception) -> None:
    """Counts a failed call of a function of ours, by the function's name."""
    name = getattr(function, "__qualname__", type(function).__qualname__).replace(".<locals>", "")
    recorder.drops.add(HOOK, f"{name}: {type(error).__name__}: {error}")


def removal(*handles: Any) -> Uninstall:
    """Returns a function that removes global optimizer hooks at any time, even while torch is calling them.

    torch iterates over a dictionary of hooks during a step. If one is removed then and another one follows, the
    training ends with "OrderedDict mutated during iteration". So during a step, hooks that do nothing take their place
    until `sweep`.
    """
    sweep()

    def uninstall() -> None:
        for handle in handles:
            hooks = handle.hooks_dict_ref()
            if hooks is not None and handle.id in hooks:
                hooks[handle.id] = _nothing
        _left.extend(handles)
        sweep()

    return uninstall


def sweep() -> None:
    """Removes the hooks that do nothing, unless a step is under way."""
    if _left and not _is_in_step():
        while _left:
            _left.pop().remove()


def _nothing(optimizer: Any, args: Any, kwargs: Any) -> None:
    """Stands in the place of a hook that was removed during a step."""


def _is_in_step() -> bool:
    """Whether any thread is inside torch's code around steps; without the GIL, whether this one is."""
    stacks = stack_of_frame(sys._getframe()), *map(stack_of_thread, threads())
    return any(level.module == "torch.optim.optimizer" for stack in stacks for level in stack)


class Hooking:
    """The hooks of a session, which come and go together; nothing here raises."""

    def __init__(self, recorder: Any, unmeasured: Callable[[str], None]) -> None:
        self._recorder = recorder
        self._unmeasured = unmeasured
        self._uninstalls: list[Uninstall] = []
        self._present: set[Callable[[Any], Uninstall]] = set()

    def install(self, hooks: Iterable[tuple[str, Callable[[Any], Uninstall]]], context: Any) -> None:
        """Installs those of the hooks that are not installed yet, in this order; they are removed in reverse."""
        for name, install in hooks:
            if install in self._present:  # such as those of a late accelerator, after a pause in the same step
                continue
            if self.attempt(name, lambda install=install: install(context)):  # type: ignore[misc]
                self._present.add(install)

    def attempt(self, name: str, install: Callable[[], Uninstall]) -> bool:
        """Installs one hook, and returns whether it is; where it fails, what `name` stands for is not measured."""
        try:
            self._uninstalls.append(install())
        except Exception as error:  # fail open: the training goes on, the report says what was not measured
            self._unmeasured(name)
            self._recorder.note(name, f"not measured: {type(error).__name__}: {error}")
            return False
        return True

    def uninstall(self) -> None:
        """Removes all hooks: nothing is recorded from now on."""
        self._recorder.active = False
        self._present.clear()
        while self._uninstalls:
            with suppress(Exception):  # the others go all the same
                self._uninstalls.pop()()
