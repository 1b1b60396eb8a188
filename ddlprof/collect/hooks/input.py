"""All hooks by which a session sees its training thread wait for data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ddlprof.collect.install import Uninstall
from ddlprof.collect.loader import dataloader, known
from ddlprof.collect.loader.data_calls import DataCalls
from ddlprof.collect.loader.waits import Waits
from ddlprof.collect.recorder import Recorder

if TYPE_CHECKING:
    from ddlprof.collect.hook_context import HookContext


class Input:
    """A session's input. `data_calls`: those the user named; `learn(loader)` is called for each DataLoader iterated."""

    def __init__(self, recorder: Recorder, learn: Callable[[Any], None], data_calls: Sequence[str]) -> None:
        self._waits = Waits(recorder)
        self._loaders = dataloader.Loaders(self._waits, learn)
        self._calls = DataCalls(self._waits, data_calls)
        self._unwatch: Uninstall = lambda: None

    def watch(self) -> None:
        """Before the script runs, sees to the data calls, and to the loaders of others whenever they are imported."""
        self._calls.watch()
        self._unwatch = known.install(self._calls, self._loaders)

    def install(self, context: HookContext) -> Uninstall:
        """Hooks the DataLoader, once torch is there."""
        self._waits.begin(context.torch)
        return dataloader.install(self._loaders)

    def close(self) -> list[str]:
        """After the script has run, takes everything back; what to say of data calls that never came."""
        self._unwatch()
        self._calls.close()
        return self._calls.complaints()
