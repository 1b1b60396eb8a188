"""Calls back after, or around, the script's import of a module, so that ddlprof never imports torch before the script.

An earlier import of torch would come before the script sets OMP_NUM_THREADS, CUDA_VISIBLE_DEVICES and the like. Finder
and loader do not derive from classes of importlib.abc, which would import tempfile and more in every run.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class _Loader:
    """The module's own loader, with one call before and one after `exec_module`."""

    def __init__(self, loader: Any, before: Callable[[], None], after: Callable[[], None]) -> None:
        self._loader = loader
        self._before = before
        self._after = after

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        self._before()
        self._loader.exec_module(module)
        self._after()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)  # some read attributes of a spec's loader without loading


class _Finder:
    """A finder that stays until the modules are imported: many packages call `find_spec` before importing torch."""

    def __init__(
        self, callbacks: Mapping[str, Sequence[Callable[[], None]]], before: Callable[[], None] = lambda: None
    ) -> None:
        self._callbacks = dict(callbacks)
        self._before = before
        self._searching: set[str] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._callbacks or fullname in self._searching:
            return None
        self._searching.add(fullname)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._searching.discard(fullname)
        if spec is not None and spec.loader is not None:
            loader: Any = _Loader(spec.loader, self._before, partial(self._imported, fullname))
            spec.loader = loader
        return spec

    def _imported(self, name: str) -> None:
        callbacks = self._callbacks.pop(name, ())
        if not self._callbacks:
            self.cancel()
        for callback in callbacks:
            callback()

    def cancel(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)


def after_import(name: str, callback: Callable[[], None]) -> Callable[[], None]:
    """Calls `callback` once the module `name` is imported; at once if it already is. Returns what cancels it."""
    return after_imports({name: [callback]})


def around_import(name: str, before: Callable[[], None], after: Callable[[], None]) -> Callable[[], None]:
    """Calls `before` right before the module `name` is executed, and `after` like `after_import`."""
    if name in sys.modules:
        return after_import(name, after)
    finder = _Finder({name: [after]}, before)
    sys.meta_path.insert(0, finder)
    return finder.cancel


def after_imports(callbacks: Mapping[str, Sequence[Callable[[], None]]]) -> Callable[[], None]:
    """`after_import` for several modules, whose names may have dots."""
    waiting = {name: calls for name, calls in callbacks.items() if name not in sys.modules}
    finder = _Finder(waiting)
    if waiting:
        sys.meta_path.insert(0, finder)
    for name in callbacks:
        for callback in callbacks[name] if name not in waiting else ():
            callback()
    return finder.cancel
