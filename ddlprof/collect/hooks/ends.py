"""Between whom an operation of torch.distributed goes: its group, the root of a rooted one, the two ends of a message.

Operators name ranks by their place in the group; here they are ranks of the job. A message is no collective of its
group: it counts among those that go the same way, and its *channel* (`GROUP:SENDER>RECEIVER`, with the tag if it has
one) stands in place of the group.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import ref

import torch.distributed as dist

from ddlprof.collect.torch_private.collectives import arguments_of

ANYBODY = "any"
"""The sender in a channel where it is not known when the receive is issued."""

_ROOT, _TAG = ("root_rank", "dst", "src"), "tag"
_ASYNCHRONOUS = ("async_op", "asyncOp")
_MESSAGES = ("send", "recv", "recv_any_source")


class Group:
    """What is known of a process group, and does not change."""

    __slots__ = ("_places", "_process_group", "name", "ranks")

    def __init__(self, process_group: Any, forget: Callable[[Any], None]) -> None:
        self.name = str(process_group.group_name)
        self.ranks: int = process_group.size()
        self._process_group = ref(process_group, forget)
        self._places: dict[int, int | None] = {}

    def is_of(self, process_group: Any) -> bool:
        """Whether it tells of this group, and not of one that had its place in memory before."""
        return self._process_group() is process_group

    def rank(self, place: int) -> int | None:
        """Rank in the job; None in a group that was made past torch's list of groups."""
        known = self._places.get(place)
        if known is None:
            known = self._places[place] = _rank(self._process_group(), place)
        return known


class Groups:
    """All of them, looked up by what they are rather than asked for it with each collective."""

    def __init__(self) -> None:
        self._known: dict[int, Group] = {}

    def of(self, process_group: Any) -> Group:
        """What is known of a group. It is not kept: a group that is could not be destroyed."""
        place = id(process_group)
        group = self._known.get(place)
        if group is None or not group.is_of(process_group):
            group = self._known[place] = Group(process_group, lambda _: self._known.pop(place, None))
        return group


class Ends:
    """Finds the ends of each operation."""

    def __init__(self) -> None:
        self._from_anybody: set[str] = set()
        """Groups in which this rank took what came from anybody: nobody knows the numbers of its later messages."""

    def find(self, op: Op, args: tuple[Any, ...], group: Group) -> tuple[str, int | None]:
        """The group or channel under which the operation counts, and its root or other end."""
        root = None if op.root is None else group.rank(args[op.root])
        return (self._channel(op, args, group.name, root) if op.is_message else group.name), root

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
