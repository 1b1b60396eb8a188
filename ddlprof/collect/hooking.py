"""The hooks of a session come and go together; one that cannot be installed is said to be unmeasured."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from ddlprof.collect.install import Uninstall
from ddlprof.collect.recorder import Recorder

if TYPE_CHECKING:
    from ddlprof.collect.hook_context import HookContext, Install


class Hooking:
    """Nothing here raises."""

    def __init__(self, recorder: Recorder, unmeasured: Callable[[str], None]) -> None:
        self._recorder = recorder
        self._unmeasured = unmeasured
        self._uninstalls: list[Uninstall] = []

    def install(self, hooks: Iterable[tuple[str, Install]], context: HookContext) -> None:
        """Installs the hooks in this order; they are removed in reverse."""
        for name, install in hooks:
            self.attempt(name, lambda install=install: install(context))  # type: ignore[misc]

    def attempt(self, name: str, install: Callable[[], Uninstall]) -> None:
        """Tries some work; where it fails, what `name` stands for is not measured."""
        try:
            self._uninstalls.append(install())
        except Exception as error:  # fail open: the training goes on, the report says what was not measured
            self._unmeasured(name)
            self._recorder.note(name, f"not measured: {type(error).__name__}: {error}")

    def uninstall(self) -> None:
        """Takes all back: nothing is recorded from now on."""
        self._recorder.active = False
        while self._uninstalls:
            with suppress(Exception):  # the others go all the same
                self._uninstalls.pop()()
