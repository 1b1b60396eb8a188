"""What the training thread does, by the events of the unfinished step, its stack and the device's clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ddlprof.collect.process.frames import StackFrame
from ddlprof.collect.seen_groups import LATEST, SeenGroup, SeenGroups
from ddlprof.model.dimensions import group_of
from ddlprof.model.events import Event, Kind
from ddlprof.model.hang import CHECKPOINT, COLLECTIVE, COMPILING, DATA, EVALUATION, SCRIPT, GroupState, Issued
from ddlprof.torch_private.compile import COMPILERS

_OPENED_BY = {
    Kind.DATA_END: Kind.DATA_BEGIN,
    Kind.FORWARD_END: Kind.FORWARD_BEGIN,
    Kind.COMM_END: Kind.COMM_BEGIN,
    Kind.CHECKPOINT_END: Kind.CHECKPOINT_BEGIN,
}
_DOING = {Kind.DATA_BEGIN: DATA, Kind.COMM_BEGIN: COLLECTIVE, Kind.CHECKPOINT_BEGIN: CHECKPOINT}
_DISTRIBUTED = "torch.distributed."


def doing(recent: Sequence[Event], stack: Sequence[StackFrame]) -> str:
    """What the thread does after these events, the latest of the unfinished step, with this stack (innermost first)."""
    ended: list[int] = []
    for kind, _, grad, _, _ in reversed(recent):
        if kind in _OPENED_BY:
            ended.append(_OPENED_BY[Kind(kind)])
        elif kind in ended:
            ended.remove(kind)
        elif kind in _DOING:
            return _DOING[Kind(kind)]
        elif kind == Kind.FORWARD_BEGIN and not grad and not _modules(stack, _DISTRIBUTED):
            return EVALUATION
    if _modules(stack, *COMPILERS):
        return COMPILING
    return COLLECTIVE if _modules(stack, _DISTRIBUTED) else SCRIPT


def in_distributed(stack: Sequence[StackFrame]) -> bool:
    """Whether the thread is inside torch.distributed."""
    return _modules(stack, _DISTRIBUTED)


def _modules(stack: Sequence[StackFrame], *prefixes: str) -> bool:
    return any(f"{level.module}.".startswith(prefixes) for level in stack)


class Passed:
    """Which collectives a device has passed. `is_passed` asks the device for a list of events; it waits for nothing."""

    def __init__(self, events: Sequence[Event], is_passed: Callable[[list[Event]], bool]) -> None:
        stamped = [place for place, event in enumerate(events) if event[1] is not None]
        low, high = 0, len(stamped)  # the first `low` stamped events have been passed
        while low < high:
            middle = (low + high + 1) // 2
            if is_passed([events[stamped[middle - 1]]]):
                low = middle
            else:
                high = middle - 1
        self.all = low == len(stamped)
        """Whether it has passed everything."""
        last = stamped[low - 1] if low else -1
        self.open = {id(record) for kind, _, record, _, _ in events[last + 1 :] if kind == Kind.COLLECTIVE}
        """The collectives, by `id`, that it may not have passed."""


def group_states(seen: SeenGroups, dimensions: dict[str, str], now_ns: int, passed: Passed | None) -> list[GroupState]:
    """The groups and channels in which this rank has issued something, with the latest collectives of each."""
    found = []
    for name, counter in list(seen.counters.items()):
        begin = max(0, counter.noted - LATEST)
        latest = [counter.latest[number % LATEST] for number in range(begin, counter.noted)]
        recent = [_issued(each, now_ns, passed) for each in latest if each is not None]
        if recent:
            found.append(GroupState(name, dimensions.get(group_of(name), ""), members(name, seen), recent))
    return found


def _issued(collective: Any, now_ns: int, passed: Passed | None) -> Issued:
    over = collective.end is not None
    if passed is not None:
        over = over or id(collective) not in passed.open
    age_s = max(now_ns - collective.issued, 0) / 1e9
    return Issued(collective.seq, collective.op, collective.bytes, collective.root, age_s, over)


def members(name: str, seen: SeenGroups) -> list[int]:
    """The ranks in a group, or at the two ends of a channel; empty if unknown."""
    direction = name.rpartition(":")[2].partition("#")[0].split(">")
    if len(direction) == 2:
        return [int(end) for end in direction] if all(end.isdecimal() for end in direction) else []
    group: SeenGroup | None = seen.by_name.get(name)
    if group is None:
        return []
    return group.members or (list(range(group.ranks)) if group.is_whole else [])
