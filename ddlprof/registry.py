"""The extensions of `ddlprof`: what lies beside the line profile, attribute, recommend, each in a room of its own.

`EXTENSIONS` has one line for each room in `ddlprof/extensions`. An installed package adds one by an entry point of the
group `ddlprof.extensions` that leads to its `Extension`. Nothing of a room is imported before it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from ddlprof.base.errors import complain

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

EXTENSIONS = (  # in the order in which `ddlprof --help` has their commands
    "sharing",
    "characterize",
    "learn",
    "probe",
    "hetero",
    "cluster",
    "fusion",
    "sparsity",
    "integrations",
)
ENTRY_POINTS = "ddlprof.extensions"


class Command(NamedTuple):
    """A command, or a group of them, by name."""

    help: str
    """The command's line in the list of commands."""
    examples: Sequence[str] = ()
    """The words after `ddlprof` in the examples at the end of the command's own help."""
    module: str = ""
    """The module with `app`, or with a function of the module's own name."""
    takes_all: bool = False
    """Whether the words after the script, options included, belong to the script."""


class Extension(NamedTuple):
    """What a room, or a package outside, adds to `ddlprof`."""

    group: str = ""
    """The title in the list of commands under which its own stand."""
    commands: Mapping[str, Command] = {}
    examples: Mapping[str, Sequence[str]] = {}
    """The examples of commands in a group, such as `cluster simulate`."""
    names: Mapping[str, str] = {}
    """The short names of modules that users import, and the modules that have them."""


def rooms() -> Iterator[Extension]:
    """The extensions that come with `ddlprof`."""
    for name in EXTENSIONS:
        yield import_module(f"ddlprof.extensions.{name}.extension").EXTENSION


def from_outside() -> Iterator[Extension]:
    """The extensions of other installed packages; one that is broken costs a line."""
    from importlib.metadata import entry_points

    yield from filter(None, map(_loaded, entry_points(group=ENTRY_POINTS)))


def _loaded(entry: EntryPoint) -> Extension | None:
    try:
        found = entry.load()
        if not isinstance(found, Extension):
            raise TypeError(f"{entry.value} is no Extension")
    except Exception as error:  # whatever another package does when it is imported
        complain(f"the extension {entry.name} is left out: {type(error).__name__}: {error}")
        return None
    return found


def short_names() -> dict[str, str]:
    """The names of all rooms that users import."""
    return {short: name for room in rooms() for short, name in room.names.items()}
