"""Collectives: which ranks take part in each, and which are under way on the host and on devices.

Operators name ranks by their place in the group; here they are ranks of the job. A point-to-point message (send or
receive) is not counted as a collective of its group. It is counted per *channel* (`GROUP:SENDER>RECEIVER`, followed by
the tag, modulo `_MOST_TAGS`, if that is not 0), and the channel's name stands in place of the group's.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
import torch.distributed as dist

from ddlprof.base.real_time import time
from ddlprof.collect.hooks.streams import COMM, Streams, WorkQueue, key_of
from ddlprof.collect.seen_groups import CollectiveCounter, SeenGroups
from ddlprof.model.records import MESSAGES, is_all_to_all
from ddlprof.torch_private.collectives import arguments_of, backend_for
from ddlprof.torch_private.engine import graph_task

_MOST_OPEN = 4096
_MOST_TAGS = 1024
"""Messages between two ranks whose tags are equal modulo this share a channel: each may have a tag of its own."""
ANYBODY = "any"
"""The sender in the name of a channel, if it is not known when the receive is issued."""

_ROOT, _TAG = ("root_rank", "dst", "src"), "tag"
_ASYNCHRONOUS = ("async_op", "asyncOp")


class IssuedCollective:
    """One collective of this rank; times are nanoseconds on the monotonic clock, None while not known.

    `issued` is when the host issued it. `ready` is the same time until `place_collectives` sets it to the time at which
    the device began it.
    """

    duration: int | None = None
    end: int | None = None
    need: int | None = None
    exposed: int | None = None
    stream: Any = None
    """The key of the stream it was issued on; None on the host, or if the clock's stream runs it or waits at once."""
    address = 0
    """The address of its output, by which `wait_tensor` finds it."""
    followed = False
    """Whether its Work tells when it ends."""
    stack: Any = None
    """In some steps the stack of its issuer (`ddlprof.collect.process.issuers`), until the step has ended."""

    def __init__(
        self, group: str, seq: int, op: str, size: int, ranks: int, ready: int, root: int | None = None
    ) -> None:
        self.group = group
        self.seq = seq
        self.op = op
        self.bytes = size
        self.ranks = ranks
        self.issued = self.ready = ready
        self.root = root

    def done(self, _: Any) -> None:
        """Callback of the Work's future."""
        self.end = time.perf_counter_ns()


class CollectivesInFlight:
    """The collectives that have not ended, by their Work. The script waits for the very same Work object."""

    def __init__(self) -> None:
        self.by_work: dict[Any, IssuedCollective] = {}
        self.patched_works: set[type] = set()
        """Classes of Works whose `wait` was replaced."""

    def add(self, work: Any, collective: IssuedCollective, output: Any) -> None:
        """Adds a collective that has just been issued."""
        collective.address = output.data_ptr()
        self.by_work[work] = collective

    def follow(self, work: Any, collective: IssuedCollective) -> None:
        """Has the Work's future report the end; synchronous collectives go without, because it costs the host time."""
        with contextlib.suppress(Exception):  # no future: see `let_go` and `Waits.blocking`
            work.get_future().add_done_callback(collective.done)
            collective.followed = True

    def over(self, waited: tuple[IssuedCollective, ...]) -> None:
        """Called when a wait for these is over: sets their ends, and lets go of their Works, which hold tensors."""
        for collective in waited:
            if collective.end is None:
                collective.end = time.perf_counter_ns()
            with contextlib.suppress(StopIteration):
                self.by_work.pop(self.work_of(collective), None)

    def with_output(self, tensor: Any) -> tuple[IssuedCollective, ...] | None:
        """The newest collective whose output is this tensor, as a tuple of one; None if there is none."""
        address = tensor.data_ptr()
        return next(((each,) for each in reversed(self.by_work.values()) if each.address == address), None)

    def work_of(self, collective: IssuedCollective) -> Any:
        """The Work of a collective. Raises StopIteration if the collective is no longer kept here."""
        return next(work for work, each in self.by_work.items() if each is collective)

    def see_ends(self) -> None:
        """Sets the end of each completed collective whose callback has not come yet to the current time."""
        for work, collective in list(self.by_work.items()):
            if collective.end is None and work.is_completed():
                collective.end = time.perf_counter_ns()

    def let_go(self) -> None:
        """Forgets completed collectives; those without a callback end at the time at which this first sees it."""
        if len(self.by_work) >= _MOST_OPEN:  # a script that never waits
            self.by_work.clear()
        for work, collective in list(self.by_work.items()):
            if collective.end is None:
                if collective.followed or not work.is_completed():
                    continue
                collective.end = time.perf_counter_ns()
            self.by_work.pop(work, None)


def tensors(values: Any) -> Iterator[Any]:
    """The tensors among `values` and in lists inside it.

    It tests types only: asking a ScriptObject for an attribute that it lacks takes ten microseconds.
    """
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from tensors(value)
        elif isinstance(value, torch.Tensor):
            yield value


def whole_bytes(op: str, args: tuple[Any, ...], ranks: int) -> int:
    """The bytes that all ranks have together: the size of the largest argument, a tensor or a list of tensors.

    In a gather or scatter only the root has such an argument, so this rank's part is multiplied by the number of ranks.
    """
    sizes = []
    for value in args:
        if isinstance(value, (list, tuple)):
            sizes.append(value[0].nbytes if _is_one_tensor(value) else sum(each.nbytes for each in tensors(value)))
        elif isinstance(value, torch.Tensor):
            sizes.append(value.nbytes)
    if op in ("gather", "scatter"):
        return ranks * min(filter(None, sizes), default=0)
    return max(sizes, default=0)


def _is_one_tensor(values: Any) -> bool:
    return len(values) == 1 and isinstance(values[0], torch.Tensor)


class CollectiveGroup:
    """The facts about a process group that do not change."""

    __slots__ = ("_places", "counter", "name", "ranks", "reference")

    def __init__(self, name: str, process_group: Any, reference: Any, counter: CollectiveCounter) -> None:
        self.name = name
        self.ranks: int = process_group.size()
        self.reference = reference
        """A weak reference to the process group; tells it from an earlier group that had the same address."""
        self.counter = counter
        self._places: dict[int, int | None] = {}

    def rank(self, place: int) -> int | None:
        """The rank in the job of the member at `place`; None if torch has not registered the group."""
        known = self._places.get(place)
        if known is None:
            known = self._places[place] = _rank(self.reference(), place)
        return known


class Groups:
    """All process groups, with their facts cached, so that torch is not asked again for each collective."""

    def __init__(self, seen: SeenGroups) -> None:
        self.known: dict[int, CollectiveGroup] = {}
        """Groups by the `id` of the process group. A strong reference would keep the script from destroying it."""
        self._counters = seen.counters
        self._seen = seen

    def of(self, process_group: Any) -> CollectiveGroup:
        """The facts about a process group, read from torch at the first call."""
        place = id(process_group)
        group = self.known.get(place)
        if group is None or group.reference() is not process_group:
            name = str(process_group.group_name)
            reference = ref(process_group, lambda _: self.known.pop(place, None))
            counter = self._counters.setdefault(name, CollectiveCounter())
            group = self.known[place] = CollectiveGroup(name, process_group, reference, counter)
            self._seen.add(name, process_group, group.ranks, dist.get_world_size())
        return group

    def seen(self, name: str) -> int:
        """The number of operations, messages included, that were issued in the groups of that name."""
        counter = self._counters.get(name)
        return 0 if counter is None else counter.seen


class Endpoints:
    """Finds the group or channel, and the root or other end, of each operation."""

    def __init__(self, seen: SeenGroups) -> None:
        self._from_anybody: set[str] = set()
        """Groups in which this rank has received from any source, so that later sequence numbers are unknown."""
        self._counters = seen.counters
        self._exchanging: set[str] = set()
        """Groups in which all-to-alls were issued."""
        self._seen = seen

    def find(self, op: Op, args: tuple[Any, ...], group: CollectiveGroup) -> tuple[str, CollectiveCounter, int | None]:
        """The group or channel under which the operation counts, its count, and its root or other end."""
        root = None if op.root is None else group.rank(args[op.root])
        if not op.is_message:
            if op.is_exchange and group.name not in self._exchanging:
                self._exchanging.add(group.name)
                self._seen.first_exchange(group.name)
            return group.name, group.counter, root
        channel = self._channel(op, args, group.name, root)
        counter = self._counters.get(channel)
        if counter is None:
            counter = self._counters[channel] = CollectiveCounter()
            self._seen.first_exchange(group.name)
        return channel, counter, root

    def _channel(self, op: Op, args: tuple[Any, ...], name: str, other: int | None) -> str:
        own, tag = dist.get_rank(), args[op.tag] % _MOST_TAGS if op.tag is not None else 0
        if op.name == "recv_any_source":
            self._from_anybody.add(name)
        unknown = other is None or name in self._from_anybody
        direction = f"{own}>{other}" if op.name == "send" else f"{ANYBODY if unknown else other}>{own}"
        return f"{name}:{direction}#{tag}" if tag else f"{name}:{direction}"


def _rank(group: Any, place: int) -> int | None:
    """The rank in the job of the member at `place`; None if torch has not registered the group."""
    try:
        return int(dist.get_global_rank(group, place))
    except (KeyError, ValueError):
        return None


class Op:
    """The facts that an operator's schema gives: its name, and which arguments hold the root or peer, and the tag."""

    def __init__(self, operator: Any, name: str) -> None:
        self.name = name.strip("_")
        names = [argument.name for argument in arguments_of(operator)]
        self.root = next((names.index(each) for each in _ROOT if each in names), None)
        self.tag = names.index(_TAG) if _TAG in names else None
        self.is_message = self.name in MESSAGES
        self.is_exchange = is_all_to_all(self.name)
        found = [(n, a) for n, a in enumerate(arguments_of(operator)) if a.name in _ASYNCHRONOUS]
        self._asynchronous = found[0] if found else None

    def is_asynchronous(self, args: tuple[Any, ...], kwargs: Any) -> bool:
        """Whether the script has to wait for its Work; also True if the schema has no such argument."""
        if self._asynchronous is None:
            return True
        place, argument = self._asynchronous
        return bool(args[place] if len(args) > place else kwargs.get(argument.name, argument.default_value))


class DeviceCollectives:
    """Collectives of tensors on devices: which stream each is issued on, and which streams wait for it.

    NCCL runs a synchronous collective on the current stream, or has that stream wait for it at once. For an
    asynchronous one, the stream that is current when the script calls `Work.wait` waits. Neither makes the host wait.
    Callers catch the errors that these methods raise; that collective or wait is then not measured.
    """

    def __init__(self, streams: Streams) -> None:
        self.streams = streams
        self._issued: WeakKeyDictionary[Any, tuple[WorkQueue, int]] = WeakKeyDictionary()
        """Of each Work that the script holds: its source and number."""
        self._numbers = itertools.count(1)
        self._graph_task = graph_task(torch)
        self._latest: Any = None
        """The latest Work, held until the script waits for it, so that the script gets the very same object."""
        self._in_backward: dict[str, tuple[Any, Any]] = {}
        """By name: the process group, and the Work of its last asynchronous collective in this backward."""
        self._sides: dict[int, Any] = {}
        self._kinds: dict[tuple[str, Any], bool] = {}

    def issued(self, collective: Any, device: Any, asynchronous: bool) -> bool:
        """Called before the collective is issued; True if the clock's stream runs it, or waits for it, at once."""
        current = self.streams.accelerator.current_stream(device)
        if not asynchronous:
            clock = self.streams.clock_stream
            if clock is not None and current == clock:
                return True
            collective.stream = key = key_of(current)
            self.streams.carry(key, COMM, collective)
            return False
        collective.stream = key_of(current)
        return False

    def is_on(self, device: Any) -> bool:
        """Whether a tensor's device is of the accelerator's kind, whose streams are followed."""
        kind = self.streams.accelerator.kind
        known = self._kinds.get((kind, device))
        if known is None:
            known = self._kinds[kind, device] = device.type == kind
        return known

    def follow(self, collective: Any, group: Any, work: Any) -> None:
        """Called when an asynchronous collective has been issued."""
        self._latest = work
        self._issued[work] = WorkQueue(collective.stream, COMM, collective.group), next(self._numbers)
        if self._graph_task() != -1:
            self._in_backward[collective.group] = group, work

    def waits(self, work: Any) -> bool:
        """Whether the step waits if the current stream waits for a Work.

        If the current stream is not the clock's, the wait is noted there, for streams that wait for that one later.
        """
        current = self.streams.current()
        if current is None:
            return True
        if self.streams.accelerator.is_capturing():
            return False
        issued = self._issued.get(work)
        if work is self._latest:
            self._latest = None
        if self.streams.is_clock(current):
            self.streams.reach(issued[0].stream if issued else key_of(current))
            return True
        if issued:
            self.streams.await_work(current, *issued)
        else:
            self.streams.note(current, COMM)
        return False

    def backward_computed(self) -> Any:
        """Called just before DDP waits for the collectives of this backward; returns a device event for the last end.

        None if that cannot be had. A stream of our own waits for them, so that nothing is added to the streams that
        work. It waits for their futures, because `Work.wait` would free the memory that the Work keeps for the script's
        streams.
        """
        works, self._in_backward = list(self._in_backward.values()), {}
        clock = self.streams.clock_stream
        self.streams.reach(*(self._issued[work][0].stream for _, work in works if work in self._issued))
        if clock is None or not works or self.streams.accelerator.is_capturing():
            return None
        if not all(_never_blocks(group, clock.device, self.streams.accelerator.backend) for group, _ in works):
            return None
        side = self._sides.get(clock.device_index)
        if side is None:
            side = self._sides[clock.device_index] = self.streams.accelerator.beside(clock.device)
        with self.streams.accelerator.on_stream(side):
            for _, work in works:
                work.get_future().wait()
        return self.streams.recorder.device.mark(side)

    def backward_over(self) -> None:
        """Drops the groups and Works that were held for the backward."""
        self._in_backward.clear()
        self.rest()

    def rest(self) -> None:
        """Drops the latest Work: between steps the script has the Works that it wants."""
        self._latest = None


def _never_blocks(group: Any, device: Any, backend: str | None) -> bool:
    """Whether the group uses the device's own backend (NCCL), whose futures make streams wait and never the host."""
    return bool(backend_for(group, device).name() == backend)
