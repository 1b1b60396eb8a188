"""Names of modules that users type and that lie elsewhere: a finder that is asked last gives the same modules for them.

Packages in a room of `ddlprof/extensions` have a short name, such as `ddlprof.fusion`. And two packages of ours had
other names: `from recommender import ...` goes on working wherever nothing else has the name, except in a training that
is measured, which has only names of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType

OLD = ("recommender", "instance_catalog")
_IN_A_TRAINING = "ddlprof.collect.session"
_OURS = "ddlprof."


class _Today:
    """Gives the module that a name stands for in place of a new one."""

    def __init__(self, name: str) -> None:
        self._name = name

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(self._name)
        self._today = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._today  # the import system has put the old name there


class _OldNames:
    """Finds modules by such names. It stands first for modules of a package that was found so, else last."""

    def __init__(self) -> None:
        self.short_names: Callable[[], Mapping[str, str]] = dict
        self._of_rooms: Mapping[str, str] | None = None

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        name = self._in_a_room(fullname) if fullname.startswith(_OURS) else self._of_a_package(fullname)
        # Its base class brings ten modules.
        return None if name is None else ModuleSpec(fullname, _Today(name))  # type: ignore[arg-type]

    def _of_a_package(self, fullname: str) -> str | None:
        top, dot, _ = fullname.partition(".")
        if top not in OLD or _IN_A_TRAINING in sys.modules:
            return None
        if dot and sys.modules.get(top) is not sys.modules.get(f"ddlprof.{top}", self):
            return None
        if not dot:
            stand_first()
        return f"ddlprof.{fullname}"

    def _in_a_room(self, fullname: str) -> str | None:
        if self._of_rooms is None:
            self._of_rooms = {}  # while they are being read
            self._of_rooms = self.short_names()
        for short, name in self._of_rooms.items():
            if fullname == short or fullname.startswith(f"{short}."):
                stand_first()
                return name + fullname.removeprefix(short)
        return None


_FINDER = _OldNames()


def stand_last(short_names: Callable[[], Mapping[str, str]]) -> None:
    """From now on the old names are found if no other finder finds them.

    `short_names`: those of packages in rooms, and what has them; called when one of ours is found nowhere else.
    """
    _FINDER.short_names = short_names
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
