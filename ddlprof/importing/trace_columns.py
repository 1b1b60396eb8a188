"""The columns kept of a trace's events: a few tens of bytes for each event that counts.

Times are integer nanoseconds as the trace counts them; `TraceColumns.base_ns` is the unix time of their zero.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ddlprof.importing import names
from ddlprof.importing.names import ActivityKind, Message, message_of, sizes_of

_NANOSECONDS_FROM = 10**17
"""Times are microseconds by default. Numbers from here on can only be nanoseconds: as microseconds they would be in the
year 5138."""
_LARGEST_NS = 2**61
MOST_NAMES = 1 << 16


class SpanColumns:
    """Begin and end of many spans."""

    def __init__(self) -> None:
        self.begin, self.end = array("q"), array("q")

    def __len__(self) -> int:
        return len(self.begin)

    def add(self, begin: int, end: int) -> None:
        self.begin.append(begin)
        self.end.append(end)


class Outermost(SpanColumns):
    """The outermost spans of one thread, as far as the order of events shows which are nested."""

    def add(self, begin: int, end: int) -> None:
        begins, ends = self.begin, self.end
        while begins and begin <= begins[-1] and ends[-1] <= end:
            begins.pop()
            ends.pop()
        if not begins or begin < begins[-1] or ends[-1] < end:
            super().add(begin, end)


class NamedRange(NamedTuple):
    """A named range of one thread."""

    begin: int
    end: int
    thread: int
    name: str


class Activities(SpanColumns):
    """The activities of devices. `message`: an index into `TraceColumns.messages`, -1 for none."""

    def __init__(self) -> None:
        super().__init__()
        self.kind, self.device, self.stream = array("b"), array("h"), array("i")
        self.correlation, self.message = array("q"), array("i")


@dataclass
class TraceColumns:
    """Everything that is kept of one trace."""

    activities: Activities = field(default_factory=Activities)
    launch_correlation: array[int] = field(default_factory=lambda: array("q"))
    launch_time: array[int] = field(default_factory=lambda: array("q"))
    launch_thread: array[int] = field(default_factory=lambda: array("i"))
    """The calling thread; -1 for the launch of a graph."""
    steps: list[NamedRange] = field(default_factory=list)
    steps_on_device: list[NamedRange] = field(default_factory=list)
    updates: list[NamedRange] = field(default_factory=list)
    zeroing: dict[int, Outermost] = field(default_factory=dict)
    loading: dict[int, Outermost] = field(default_factory=dict)
    wrapped: dict[int, Outermost] = field(default_factory=dict)
    """The forwards of DDP and FSDP, by thread."""
    operators: dict[int, Outermost] = field(default_factory=dict)
    forward: dict[int, Outermost] = field(default_factory=dict)
    """Operators that autograd numbers: those of a forward with gradients, and of making the batch."""
    backward: dict[int, Outermost] = field(default_factory=dict)
    waits: dict[int, Outermost] = field(default_factory=dict)
    issued: list[tuple[int, int, str, int]] = field(default_factory=list)
    """Collectives issued: begin, end, operation, thread."""
    transfers: list[tuple[int, int, str, int | None]] = field(default_factory=list)
    """Collectives of the host: begin, end, operation, bytes."""
    messages: list[Message] = field(default_factory=list)
    message_of_external: dict[int, int] = field(default_factory=dict)
    """The message that torch recorded in an operator, by the operator's id."""
    processes: dict[int, str] = field(default_factory=dict)
    """The process of each thread, by the number that its system gave it."""
    other_device: str | None = None
    """The kind of the device, if the trace has events that only such a kind has; None: there is none."""
    unknown_ns: dict[str, int] = field(default_factory=dict)
    """The time (ns) in kernels of unknown kind, by name."""
    events: int = 0
    unreadable: int = 0


class Collector:
    """Sorts the events of one trace into `found`. Events may come in any order."""

    def __init__(self) -> None:
        self.found = TraceColumns()
        self._threads: dict[tuple[Any, Any], int] = {}
        self._streams: dict[tuple[Any, Any], int] = {}
        self._messages: dict[Message, int] = {}
        self._external: list[tuple[int, int]] = []
        self._scale: int | None = None
        self._handlers = {
            names.KERNEL: self._kernel, names.COPY: self._copy, names.FILL: self._fill, names.CALL: self._call,
            names.OPERATOR: self._operator, names.RANGE: self._range, names.RANGE_ON_DEVICE: self._range_on_device,
        }  # fmt: skip

    def add(self, event: dict[str, Any]) -> None:
        """Keeps what counts of one event."""
        category = event.get("cat")
        if not isinstance(category, str):
            return
        kind = names.CATEGORIES.get(category) or names.CATEGORIES.get(category.lower(), -1)
        handler = self._handlers.get(kind)
        if handler is None or kind == names.CALL:
            self.found.other_device = self.found.other_device or names.other_device(category)
        if handler is None or event.get("ph") != "X":
            return
        begin, length = self._nanoseconds(event.get("ts")), self._nanoseconds(event.get("dur", 0), True)
        name, args = event.get("name"), event.get("args")
        if begin is None or length is None or not isinstance(name, str):
            self.found.unreadable += 1
            return
        self.found.events += 1
        handler(name, begin, begin + length, event, args if isinstance(args, dict) else {})

    def finish(self) -> TraceColumns:
        """Joins kernels with what operators tell of their collectives, which may come later in the file."""
        for index, external in self._external:
            self.found.activities.message[index] = self.found.message_of_external.get(external, -1)
        self._external = []
        self.found.messages = list(self._messages)
        self.found.processes = {thread: process for (process, _), thread in self._threads.items()}
        return self.found

    def _nanoseconds(self, value: Any, is_length: bool = False) -> int | None:
        if type(value) not in (int, float) or not abs(value) < _LARGEST_NS:  # nor NaN
            return None
        if self._scale is None and not is_length:
            self._scale = 1 if value >= _NANOSECONDS_FROM else 1000
        whole = int(value)  # a float of unix time in ns is exact to 256 ns only
        scale = self._scale or 1000
        found = whole * scale + round((value - whole) * scale)
        return found if 0 <= found < _LARGEST_NS else None

    def _thread(self, event: dict[str, Any]) -> int:
        return _number(self._threads, event)

    # -- the device ------------------------------------------------------------------------------------------------

    def _kernel(self, name: str, begin: int, end: int, event: dict[str, Any], args: dict[str, Any]) -> None:
        kind = names.kernel_kind(name)
        message = -1
        if kind is ActivityKind.COMMUNICATION or "Collective name" in args:
            kind = ActivityKind.COMMUNICATION
            message = self._message(message_of(args, names.kernel_op(name)))
            external = args.get("External id")
            if message < 0 and isinstance(external, int):
                self._external.append((len(self.found.activities), external))
        elif not names.is_known(name):
            unknown = self.found.unknown_ns
            if name in unknown or len(unknown) < MOST_NAMES:
                unknown[name] = unknown.get(name, 0) + end - begin
        self._activity(kind, begin, end, event, args, message)

    def _copy(self, name: str, begin: int, end: int, event: dict[str, Any], args: dict[str, Any]) -> None:
        self._activity(names.copy_kind(name), begin, end, event, args)

    def _fill(self, name: str, begin: int, end: int, event: dict[str, Any], args: dict[str, Any]) -> None:
        self._activity(ActivityKind.COMPUTE, begin, end, event, args)

    def _activity(
        self, kind: ActivityKind, begin: int, end: int, event: dict[str, Any], args: dict[str, Any], message: int = -1
    ) -> None:
        activities = self.found.activities
        activities.add(begin, end)
        activities.kind.append(kind)
        activities.device.append(_small(args.get("device", event.get("pid"))))
        activities.stream.append(_number(self._streams, event))
        activities.correlation.append(_id(args.get("correlation")))
        activities.message.append(message)

    def _call(self, name: str, begin: int, end: int, event: dict[str, Any], args: dict[str, Any]) -> None:
        correlation = _id(args.get("correlation"))
        if correlation >= 0 and names.is_launch(name):
            self.found.launch_correlation.append(correlation)
            self.found.launch_time.append(begin)
            self.found.launch_thread.append(-1 if names.is_graph_launch(name) else self._thread(event))

    # -- the host --------------------------------------------------------------------------------------------------

    def _range(self, name: str, begin: int, end: int, event: dict[str, Any], args: dict[str, Any]) -> None:
        found = self.found
        if names.STEP.fullmatch(name):
            found.steps.append(NamedRange(begin, end, self._thread(event), name))
        elif name.startswith(names.UPDATE):
            found.updates.append(NamedRange(begin, end, self._thread(event), name[:200]))
        elif name.startswith(names.ZERO):
            _of(found.zeroing, self._thread(event)).add(begin, end)
        elif name.startswith(names.LOADER):
            _of(found.loading, self._thread(event)).add(begin, end)
        elif name in names.WRAPPED_FORWARDS:
            _of(found.wrapped, self._thread(event)).add(begin, end)
        else:
            op = names.host_collective(name)
            if op is not None:
                found.transfers.append((begin, end, op, sizes_of(args)))

    def _range_on_device(self, name: str, begin: int, end: int, event: dict[str, Any], args: dict[str, Any]) -> None:
        if names.STEP.fullmatch(name):
            self.found.steps_on_device.append(NamedRange(begin, end, -1, name))

    def _operator(self, name: str, begin: int, end: int, event: dict[str, Any], args: dict[str, Any]) -> None:
        found, thread = self.found, self._thread(event)
        if name.startswith(names.BACKWARD):
            _of(found.backward, thread).add(begin, end)
        elif name == names.PARAMETERS:
            message = self._message(message_of(args, None))
            external = args.get("External id")
            if message >= 0 and isinstance(external, int):
                found.message_of_external[external] = message
        elif names.is_wait(name):
            _of(found.waits, thread).add(begin, end)
        elif (op := names.issued_collective(name)) is not None:
            found.issued.append((begin, end, op, thread))
        elif names.STEP.fullmatch(name) or name.startswith(("Optimizer.", "enumerate(")):  # torch 1.8's categories
            self._range(name, begin, end, event, args)
        else:
            _of(found.operators, thread).add(begin, end)
            if args.get("Sequence number") is not None and not args.get("Fwd thread id"):
                _of(found.forward, thread).add(begin, end)

    def _message(self, message: Message | None) -> int:
        if message is None:
            return -1
        return self._messages.setdefault(message, len(self._messages))


def _of(kept: dict[int, Outermost], thread: int) -> Outermost:
    found = kept.get(thread)
    if found is None:
        found = kept[thread] = Outermost()
    return found


def _number(numbers: dict[tuple[Any, Any], int], event: dict[str, Any]) -> int:
    """A number for the thread or stream of an event, whose name may be a number or a text."""
    key = (str(event.get("pid")), str(event.get("tid")))
    return numbers.setdefault(key, len(numbers))


def _small(value: Any) -> int:
    return value if isinstance(value, int) and 0 <= value < 2**15 else 0


def _id(value: Any) -> int:
    return value if isinstance(value, int) and 0 <= value < 2**62 else -1
