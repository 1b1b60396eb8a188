"""The names that two packages of ours had: `recommender` and `instance_catalog`, which now lie under `ddlprof`.

`from recommender import ...` goes on working wherever nothing else has the name: a finder that is asked last gives the
module `ddlprof.recommender` for it, and the same modules for those in it. A training that is measured has only
names of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType

OLD = ("recommender", "instance_catalog")
_IN_A_TRAINING = "ddlprof.collect.session"


class _Today:
    """Gives the module of today's name in place of a new one."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(f"ddlprof.{spec.name}")
        self._today = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._today  # the import system has put the old name there


class _OldNames:
    """Finds modules by their old names. It stands first for modules of a package that was found so, else last."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        top, dot, _ = fullname.partition(".")
        if top not in OLD or _IN_A_TRAINING in sys.modules:
            return None
        if dot and sys.modules.get(top) is not sys.modules.get(f"ddlprof.{top}", self):
            return None
        if not dot:
            stand_first()
        return ModuleSpec(fullname, _Today())  # type: ignore[arg-type]  # its base class brings ten modules


_FINDER = _OldNames()


def stand_last() -> None:
    """From now on the old names are found if no other finder finds them."""
    if not any(isinstance(finder, _OldNames) for finder in sys.meta_path):
        sys.meta_path.append(_FINDER)


def stand_first() -> None:
    """From now on modules of a package with an old name are found before the files of a checkout are looked at."""
    if sys.meta_path[0] is not _FINDER:
        sys.meta_path.insert(0, _FINDER)


def replace(name: str) -> None:
    """Puts today's package in the place of one that a checkout has at its top level by the old name."""
    sys.modules[name] = import_module(f"ddlprof.{name}")
    stand_first()
