"""The entries of the tables of private names, and functions that look a name up."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any, NamedTuple

OLDEST, NEWEST = "2.4", "2.13"
"""The oldest and newest versions of torch that were looked through."""


class PrivateName(NamedTuple):
    """A name that torch does not promise to keep."""

    path: str
    """`MODULE:NAME.NAME`. `CLASS()` among the names: the rest is of its instances; `()` alone: functions of the module
    use the rest as an attribute of something."""
    use: str
    without_it: str
    """What is lost where the name is missing: goes on after "... is missing: "."""
    since: str = OLDEST
    until: str = NEWEST
    """The first and the last version that it was seen in, and in all that were looked at in between."""
    needs: str = ""
    """Torch has it only if built with "cuda", "distributed" or "nccl"; "torchdata": that package has it."""
    example: Callable[[Any], Any] | None = None
    """Makes an object that has the attribute, given torch; for classes that do not show the attribute themselves."""

    @property
    def attribute(self) -> str:
        """The last part of the path."""
        return self.path.rpartition(":")[2].rpartition(".")[2]

    def __str__(self) -> str:
        return self.path.replace(":", ".").replace("()", "").replace("..", ".")


def version_number(text: Any) -> tuple[int, ...]:
    """Major and minor number, to be compared with others."""
    return tuple(int(part) for part in str(text).split(".")[:2])


def codes(code: CodeType) -> Iterator[CodeType]:
    """The code of a function and of those defined in it: all closures made of it share theirs."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes(constant)


def find(owner: Any, path: str) -> Any:
    """The attribute `a.b.c` of `owner`; None where one of them is missing."""
    for name in path.split("."):
        owner = getattr(owner, name, None)
    return owner


def need(torch: Any, path: str) -> Any:
    """Does what `find` does, for torch. Raises AttributeError where the name is missing."""
    found = find(torch, path)
    if found is None:
        raise AttributeError(f"torch {torch.__version__} has no torch.{path}")
    return found


def imported(module: str) -> Any:
    """A module that somebody else has imported; None as long as nobody has."""
    return sys.modules.get(module)


def reader(name: str) -> Callable[[Any], Any]:
    """A function that reads that attribute of an object, and returns None if the object has none."""

    def read(owner: Any) -> Any:
        return getattr(owner, name, None)

    return read
