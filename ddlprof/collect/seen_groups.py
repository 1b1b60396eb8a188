"""The process groups that the hooks of collectives have seen, with what is read of each when it is first seen."""

from __future__ import annotations

import sys
from typing import Any

from ddlprof.base.guarded import attempt
from ddlprof.model.dimensions import CONTEXT, PIPELINE, UNKNOWN

_MOST_FRAMES = 60
_MOST_LOOKS = 16
"""A script may send each message with a tag of its own, in a channel of its own."""
_PACKAGES = {
    "torch.distributed.pipelining": PIPELINE,
    "megatron.core.pipeline_parallel": PIPELINE,
    "deepspeed.runtime.pipe": PIPELINE,
    "torch.distributed.tensor.experimental": CONTEXT,
    "ring_flash_attn": CONTEXT,
}
"""Packages whose messages and all-to-alls are of one dimension, whatever group they are issued in."""


class SeenGroup:
    """What was read of one process group, which the script may destroy."""

    def __init__(self, name: str, process_group: Any, ranks: int, world_size: int) -> None:
        self.name = name
        self.description = str(attempt(lambda: process_group.group_desc) or "")
        """What the group's maker called it; torch 2.4 and newer."""
        self.ranks = ranks
        self.members = attempt(lambda: members_of(process_group)) or []
        """The ranks of the job in it; empty if torch does not tell."""
        self.is_whole = ranks == world_size
        """Whether all ranks of the job are in it."""
        self.looks = 0
        """How often it was looked whose code issues its messages and all-to-alls."""
        self.has_exchanges = False
        """Whether a message or an all-to-all was issued in it."""
        self.exchanges = UNKNOWN
        """The dimension of these, by the package that issues them."""


LATEST = 64
"""The number of collectives of a group that are remembered."""


class CollectiveCounter:
    """Counts what this rank has issued in the groups of one name, and remembers the latest."""

    __slots__ = ("latest", "noted", "seen")

    def __init__(self) -> None:
        self.seen = 0
        """The number of operations issued, messages included."""
        self.noted = 0
        """The number of operations that belong to steps; the next one gets it as its sequence number."""
        self.latest: list[Any] = []
        """The latest of these, each in the place of its sequence number modulo `LATEST`. It grows until it has
        that many: a channel may carry one message only."""


class SeenGroups:
    """All groups seen, by name; of several with one name, the latest."""

    def __init__(self) -> None:
        self.by_name: dict[str, SeenGroup] = {}
        self.counters: dict[str, CollectiveCounter] = {}
        """What this rank has issued, by group and by channel of messages."""
        self.changes = 0
        """How often something new was seen of a group."""

    def add(self, name: str, process_group: Any, ranks: int, world_size: int) -> None:
        """Adds a group that a collective is about to be issued in, for the first time."""
        seen, before = SeenGroup(name, process_group, ranks, world_size), self.by_name.get(name)
        if before is None or (before.description, before.ranks) != (seen.description, ranks):
            self.by_name[name] = seen
            self.changes += 1

    def first_exchange(self, name: str) -> None:
        """Called before the first message of a channel, or the first all-to-all, in the group of that name."""
        seen = self.by_name.get(name)
        if seen is None or seen.exchanges or seen.looks >= _MOST_LOOKS:
            return
        before = seen.has_exchanges, seen.exchanges
        seen.looks, seen.has_exchanges, seen.exchanges = seen.looks + 1, True, _dimension_of_callers()
        self.changes += before != (seen.has_exchanges, seen.exchanges)


def members_of(process_group: Any) -> list[int]:
    """The ranks of the job in a group, in the group's order."""
    import torch.distributed as dist

    return [int(rank) for rank in dist.get_process_group_ranks(process_group)]


def _dimension_of_callers() -> str:
    frame, looked_at = sys._getframe(1), 0
    while frame is not None and looked_at < _MOST_FRAMES:
        module = f"{frame.f_globals.get('__name__')}."
        for package, dimension in _PACKAGES.items():
            if module.startswith(f"{package}."):
                return dimension
        frame, looked_at = frame.f_back, looked_at + 1  # type: ignore[assignment]
    return UNKNOWN
