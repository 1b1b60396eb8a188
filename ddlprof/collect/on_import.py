"""Calls back right after the script has imported a module, so that we never import torch before it does.

Importing torch early would change what scripts do first: set OMP_NUM_THREADS, CUDA_VISIBLE_DEVICES and the like.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class _Loader(Loader):
    """The module's own loader, with one call after `exec_module`."""

    def __init__(self, loader: Any, callback: Callable[[], None]) -> None:
        self._loader = loader
        self._callback = callback

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._callback()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)  # for those who look at a spec that they do not load


class _Finder(MetaPathFinder):
    """Stays until the module is imported: many packages first ask `find_spec` whether there is a torch."""

    def __init__(self, name: str, callback: Callable[[], None]) -> None:
        self._name = name
        self._callback = callback
        self._searching = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name or self._searching:
            return None
        self._searching = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._searching = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._imported)
        return spec

    def _imported(self) -> None:
        self.cancel()
        self._callback()

    def cancel(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)


def after_import(name: str, callback: Callable[[], None]) -> Callable[[], None]:
    """Calls `callback` once the top-level module `name` is imported, at once if it is; returns what cancels it."""
    if name in sys.modules:
        callback()
        return lambda: None
    finder = _Finder(name, callback)
    sys.meta_path.insert(0, finder)
    return finder.cancel
