"""Between whom an operation of torch.distributed goes: its group, the root of a rooted one, the two ends of a message.

Operators name ranks by their place in the group; here they are ranks of the job. A message is no collective of its
group: it counts among those that go the same way, and its *channel* (`GROUP:SENDER>RECEIVER`, with the tag if it has
one) stands in place of the group.
"""

from __future__ import annotations

from typing import Any
from weakref import ref

import torch.distributed as dist

from ddlprof.torch_private.collectives import arguments_of

ANYBODY = "any"
"""The sender in a channel where it is not known when the receive is issued."""

_ROOT, _TAG = ("root_rank", "dst", "src"), "tag"
_ASYNCHRONOUS = ("async_op", "asyncOp")
_MESSAGES = ("send", "recv", "recv_any_source")


class Tally:
    """What has been issued in the groups of one name."""

    __slots__ = ("noted", "seen")

    def __init__(self) -> None:
        self.seen = 0
        """All, messages included."""
        self.noted = 0
        """Those of steps, without messages."""


class Group:
    """What is known of a process group, and does not change."""

    __slots__ = ("_places", "name", "ranks", "reference", "tally")

    def __init__(self, name: str, process_group: Any, reference: Any, tally: Tally) -> None:
        self.name = name
        self.ranks: int = process_group.size()
        self.reference = reference
        """To tell it from a group that had its place in memory before."""
        self.tally = tally
        self._places: dict[int, int | None] = {}

    def rank(self, place: int) -> int | None:
        """Rank in the job; None in a group that was made past torch's list of groups."""
        known = self._places.get(place)
        if known is None:
            known = self._places[place] = _rank(self.reference(), place)
        return known


class Groups:
    """All of them, looked up by what they are rather than asked for it with each collective."""

    def __init__(self) -> None:
        self.known: dict[int, Group] = {}
        """By their place in memory. They are not kept: a group that is could not be destroyed."""
        self._tallies: dict[str, Tally] = {}

    def of(self, process_group: Any) -> Group:
        """What is known of a group."""
        place = id(process_group)
        group = self.known.get(place)
        if group is None or group.reference() is not process_group:
            name = str(process_group.group_name)
            reference = ref(process_group, lambda _: self.known.pop(place, None))
            tally = self._tallies.setdefault(name, Tally())
            group = self.known[place] = Group(name, process_group, reference, tally)
        return group

    def seen(self, name: str) -> int:
        """How many were issued in the groups of that name."""
        tally = self._tallies.get(name)
        return 0 if tally is None else tally.seen


class Ends:
    """Finds the ends of each operation."""

    def __init__(self) -> None:
        self._from_anybody: set[str] = set()
        """Groups in which this rank took what came from anybody: nobody knows the numbers of its later messages."""
        self._tallies: dict[str, Tally] = {}

    def find(self, op: Op, args: tuple[Any, ...], group: Group) -> tuple[str, Tally, int | None]:
        """The group or channel under which the operation counts, its count, and its root or other end."""
        root = None if op.root is None else group.rank(args[op.root])
        if not op.is_message:
            return group.name, group.tally, root
        channel = self._channel(op, args, group.name, root)
        return channel, self._tallies.setdefault(channel, Tally()), root

    def _channel(self, op: Op, args: tuple[Any, ...], name: str, other: int | None) -> str:
        own, tag = dist.get_rank(), args[op.tag] if op.tag is not None else 0
        if op.name == "recv_any_source":
            self._from_anybody.add(name)
        unknown = other is None or name in self._from_anybody
        way = f"{own}>{other}" if op.name == "send" else f"{ANYBODY if unknown else other}>{own}"
        return f"{name}:{way}#{tag}" if tag else f"{name}:{way}"


def _rank(group: Any, place: int) -> int | None:
    """Rank in the job; None in a group that was made past torch's list of groups."""
    try:
        return int(dist.get_global_rank(group, place))
    except (KeyError, ValueError):
        return None


class Op:
    """What there is to know about an operator before it is ever called: its name, and which arguments say who."""

    def __init__(self, operator: Any, name: str) -> None:
        self.name = name.strip("_")
        names = [argument.name for argument in arguments_of(operator)]
        self.root = next((names.index(each) for each in _ROOT if each in names), None)
        self.tag = names.index(_TAG) if _TAG in names else None
        self.is_message = self.name in _MESSAGES
        found = [(n, a) for n, a in enumerate(arguments_of(operator)) if a.name in _ASYNCHRONOUS]
        self._asynchronous = found[0] if found else None

    def is_asynchronous(self, args: tuple[Any, ...], kwargs: Any) -> bool:
        """Whether its Work is to be waited for; also where this torch does not say."""
        if self._asynchronous is None:
            return True
        place, argument = self._asynchronous
        return bool(args[place] if len(args) > place else kwargs.get(argument.name, argument.default_value))
