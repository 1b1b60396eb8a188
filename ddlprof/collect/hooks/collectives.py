"""Collectives: what is noted of each when it is issued, and the places where the training thread waits for them.

`issuing` says where they are seen. Completion is the Work's future where the backend has one; gloo's reduce-scatter has
none, and ends, for us, when it is seen to be over; so does the last of a backward (`follow_last`). What is not
asynchronous ends when it was waited for, as that is done at once. Waits: the end of DDP's backward, `Work.wait`,
`wait_tensor`, DDP's blocking broadcast. On devices streams wait, see `device_collectives` and `streams`.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from ddlprof.collect.hooks.device_collectives import DeviceCollectives
from ddlprof.collect.hooks.ends import Ends, Group, Groups, Op
from ddlprof.collect.hooks.issuing import Issuing
from ddlprof.collect.hooks.torch_count import TorchCount
from ddlprof.collect.install import Uninstall, all_of, replace
from ddlprof.collect.losses import COLLECTIVE, COLLECTIVE_END, COUNT, STREAM_WAIT
from ddlprof.collect.process.real_time import time
from ddlprof.collect.recorder import Recorder
from ddlprof.collect.shared.streams import Streams
from ddlprof.collect.surroundings import Surroundings
from ddlprof.collect.torch_private import collectives as private
from ddlprof.collect.torch_private.engine import call_at_backward_end, graph_task
from ddlprof.collect.torch_private.fake import is_fake_type
from ddlprof.model.events import Kind

_COLLECTIVE = int(Kind.COLLECTIVE)  # an enumeration's attribute is slow to look up
_BEGIN, _END = int(Kind.COMM_BEGIN), int(Kind.COMM_END)
_MOST_OPEN = 4096


class Collective:
    """One collective of this rank; times are nanoseconds on the monotonic clock, None while not known.

    `issued` is when the host did so; `ready` the same, or when the device could begin (`collective_durations`).
    """

    duration: int | None = None
    end: int | None = None
    need: int | None = None
    exposed: int | None = None
    way: Any = None
    """The stream it was issued on, if that does not tell by itself who waits for it."""
    address = 0
    """That of its output, which is all that `wait_tensor` gets."""
    followed = False
    """Whether something tells when it ends."""

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


class _Collectives:
    def __init__(self, recorder: Recorder, streams: Streams) -> None:
        self.recorder = recorder
        self.streams = streams
        self.device = DeviceCollectives(self.streams)
        self.unbox_group, self.unbox_work = private.unboxing(torch)
        self.graph_task = graph_task(torch)
        self.call_at_backward_end = call_at_backward_end(torch)
        self.groups = Groups()
        self.ends = Ends()
        self.sequence: dict[str, int] = {}
        self.seen: dict[str, int] = {}
        """The number issued, messages included, by name of the group."""
        self.task = -1
        self.on_device = False
        self.bound: Any = None
        """A device event: the end of the last collective of this backward."""
        self.in_backward = self.usual = 0
        """Collectives issued in this backward so far, and in the one before."""
        self.last: Collective | None = None
        """The one that is the last of this backward, if it has as many as the one before."""
        self.open: dict[Any, Collective] = {}
        """Collectives by Work object, kept until its end: the script gets the very same object to wait for."""
        self.has_data = {torch.Tensor: True, torch.nn.Parameter: True}
        """Classes of tensors that are no fake ones."""
        self.work = private.work(torch)
        self.heard: dict[type, bool] = {}
        self.below = private.below_backend_selection(torch)

    def at_dispatcher(self, name: str) -> Callable[..., Any]:
        """The function that runs in front of the operator `name`."""
        operator = getattr(torch.ops.c10d, name).default
        op = Op(operator, name)

        def run(keyset: Any, *args: Any, **kwargs: Any) -> Any:
            if not self.recorder.active:
                return operator.redispatch(keyset & self.below, *args, **kwargs)
            ready = time.perf_counter_ns()
            collective = process_group = tensor = None
            waits = asynchronous = False
            try:
                process_group = self.group_of(args)
                group = self.groups.of(process_group)
                if self.concerns(group):
                    channel, root = self.ends.find(op, args, group)
                    ranks = 2 if op.is_message else group.ranks
                    collective = self.note(channel, op.name, _bytes(op, args, ranks), ranks, ready, root)
                    tensor = next(_tensors(args[:1]), None)
                    asynchronous = op.is_asynchronous(args, kwargs)
                    waits = self.waits_at_once(collective, tensor, asynchronous)
            except Exception as error:
                self.recorder.losses.add(COLLECTIVE, error)
            try:
                result = operator.redispatch(keyset & self.below, *args, **kwargs)
            finally:
                if waits and collective is not None:
                    self.wait_over((collective,))
            if collective is not None and tensor is not None:
                self.follow(collective, process_group, tensor, asynchronous, result)
            return result

        return run

    def at_method(self, original: Callable[..., Any], form: private.Form, elsewhere: Callable[[str], None]) -> Any:
        """The function that runs in place of a method of groups; what it cannot read is to be seen `elsewhere`.

        Written for speed: a step may issue hundreds.
        """
        recorder, groups, has_data = self.recorder, self.groups, self.has_data
        options, count, largest, listed = private.options(torch, form), form.place + 1, form.largest, form.listed
        name, rooted = form.operator.strip("_"), form.rooted

        def run(process_group: Any, *args: Any, **kwargs: Any) -> Any:
            if not recorder.active:
                return original(process_group, *args, **kwargs)
            if kwargs or len(args) != count or type(args[-1]) is not options:
                elsewhere(form.operator)
                return original(process_group, *args, **kwargs)
            ready = time.perf_counter_ns()
            collective = tensor = None
            waits = asynchronous = False
            try:
                tensor = args[0][0] if listed else args[0]
                if has_data.get(type(tensor)) or self.learn(type(tensor)):
                    group = groups.of(process_group)
                    if self.concerns(group):
                        size = args[largest].nbytes if not listed else sum([each.nbytes for each in args[0]])
                        root = group.rank(args[-1].rootRank) if rooted else None
                        collective = self.note(group.name, name, size, group.ranks, ready, root)
                        asynchronous = private.is_asynchronous(args[-1])
                        waits = not tensor.is_cpu and self.waits_at_once(collective, tensor, asynchronous)
            except Exception as error:
                recorder.losses.add(COLLECTIVE, error)
            try:
                work = original(process_group, *args)
            finally:
                if waits and collective is not None:
                    self.wait_over((collective,))
            if collective is not None:
                self.follow(collective, process_group, tensor, asynchronous, work)
            return work

        return run

    def learn(self, kind: type) -> bool:
        """Whether tensors of a class have data; a collective of those that have none is only traced."""
        self.has_data[kind] = not is_fake_type(kind)
        return self.has_data[kind]

    def concerns(self, group: Group) -> bool:
        """Counts a collective that is about to be issued; False where it is not the step's."""
        self.seen[group.name] = self.seen.get(group.name, 0) + 1
        if not (self.streams.of_step() or _in_a_thread_of_torch()):
            return False
        if self.open:
            self.look_at_open()
        return True

    def note(self, channel: str, op: str, size: int, ranks: int, ready: int, root: int | None) -> Collective:
        """Notes a collective."""
        seq = self.sequence.get(channel, 0)
        self.sequence[channel] = seq + 1
        collective = Collective(channel, seq, op, size, ranks, ready, root)
        self.recorder.emit_in_backward(_COLLECTIVE, collective)
        task = self.graph_task()
        if task != -1:
            self.expect_wait(task, collective)
        return collective

    def group_of(self, args: tuple[Any, ...]) -> Any:
        """The process group among the operator's arguments."""
        for value in args:
            if isinstance(value, torch.ScriptObject):
                try:
                    return self.unbox_group(value)
                except RuntimeError:  # a ReduceOp
                    continue
        raise LookupError("no process group")

    def waits_at_once(self, collective: Collective, tensor: Any, asynchronous: bool) -> bool:
        """Of a collective on a device: whether the clock's stream waits for it at once, which then begins."""
        try:
            if tensor is None or tensor.is_cpu:
                return False
            device = tensor.device
            if device.type != self.streams.accelerator.kind or torch.compiler.is_compiling():
                return False
            return self.device.issued(collective, device, asynchronous) and self.wait_begins()
        except Exception as error:
            self.recorder.losses.add(STREAM_WAIT, error)
            return False

    def wait_begins(self) -> bool:
        """Whether it is recorded: the step waits, and not as a part of another wait."""
        streams = self.streams
        if not streams.busy and streams.of_step():
            streams.busy = self.recorder.emit_in_backward(_BEGIN)
            return streams.busy
        return False

    def wait_over(self, waited: tuple[Collective, ...] | None, bounded: Any = False) -> None:
        """Ends the wait that began with `wait_begins`."""
        self.streams.busy = False
        self.recorder.emit_in_backward(_END, bounded, waited, self.streams.tell())

    def follow(
        self, collective: Collective, process_group: Any, tensor: Any, asynchronous: bool, result: Any
    ) -> None:
        """Learns when it ends, if it is on the host: on a device its future only tells that it was enqueued."""
        try:
            if not tensor.is_cpu:
                self.on_device = True
                if asynchronous and collective.way:
                    self.device.follow(collective, process_group, self.work_of(result))
                return
            work = self.work_of(result)
            if len(self.open) >= _MOST_OPEN:  # a script that never waits
                self.open.clear()
            collective.address = tensor.data_ptr()
            self.open[work] = collective
        except Exception as error:
            self.recorder.losses.add(COLLECTIVE_END, error)
            return
        if collective is not self.last and (asynchronous or not self.hears_wait(type(work))):
            self.tell_end(work, collective)

    def hears_wait(self, kind: type) -> bool:
        """Whether a wait for a Work of that class comes by us."""
        heard = self.heard.get(kind)
        if heard is None:
            heard = self.heard[kind] = getattr(kind, "wait", None) is vars(self.work)["wait"]
        return heard

    def work_of(self, result: Any) -> Any:
        """The Work in what a method, or an operator, returns."""
        if isinstance(result, self.work):
            return result
        return self.unbox_work(result[-1] if isinstance(result, tuple) else result)

    def tell_end(self, work: Any, collective: Collective) -> None:
        """Lets the Work's future tell; where there is none see `look_at_open` and `blocking`."""
        with contextlib.suppress(Exception):
            work.get_future().add_done_callback(collective.done)
            collective.followed = True

    def follow_last(self) -> None:
        """At the end of a backward, which has mostly waited for its last collective: no callback has to tell its end.

        It would have come at the very moment in which the training thread wants the interpreter back.
        """
        last, self.last = self.last, None
        self.usual, self.in_backward = self.in_backward or self.usual, 0
        if last is None or last.end is not None:
            return
        with contextlib.suppress(Exception):  # no future: as in `follow`
            self.see_ends()
            if last.end is None:  # not waited for in the backward
                self.tell_end(next(work for work, each in self.open.items() if each is last), last)

    def see_ends(self) -> None:
        """The end of what has no callback is the first time that it is seen to be over."""
        for work, collective in list(self.open.items()):
            if collective.end is None and work.is_completed():
                collective.end = time.perf_counter_ns()

    def look_at_open(self) -> None:
        """Lets go of what is over; does what `see_ends` does for what has no callback."""
        for work, collective in list(self.open.items()):
            if collective.end is None:
                if collective.followed or not work.is_completed():
                    continue
                collective.end = time.perf_counter_ns()
            self.open.pop(work, None)

    def expect_wait(self, task: int, collective: Collective) -> None:
        """In the backward `task`: the engine's last callbacks run in order, so ours comes just before DDP's wait.

        A backward inside a backward has last callbacks of its own, and DDP's wait may be among them.
        """
        if self.call_at_backward_end is None:
            return
        if task != self.task:
            self.task = task
            self.call_at_backward_end(self.backward_computed)
        self.in_backward += 1
        self.last = collective if self.in_backward == self.usual else None

    def backward_computed(self) -> None:
        """All gradients are there; what follows in this backward is waiting and copying."""
        if self.last is not None:
            with contextlib.suppress(Exception):
                self.see_ends()  # it may be over already
        if self.wait_begins():
            try:
                self.bound = self.device.backward_computed()
            except Exception as error:
                self.recorder.losses.add(STREAM_WAIT, error)

    def backward_over(self) -> None:
        """The backward returns to the training thread."""
        self.follow_last()
        self.device.backward_over()
        if self.streams.busy:
            bound, self.bound = self.bound, None
            self.wait_over(None, True if bound is None else bound)

    def waited_for(self, work: Any) -> tuple[Collective, ...] | None:
        """What a wait for `work` waits for: nothing that is under way if it is over, None where nobody knows."""
        collective = self.open.get(work)
        if collective is not None:
            return (collective,)
        return () if not self.on_device and work.is_completed() else None

    def blocking(
        self, original: Callable[..., Any], which: Callable[[Any], tuple[Collective, ...] | None]
    ) -> Callable[..., Any]:
        """A call that waits for communication from the training thread; `which` finds it by the first argument."""

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return original(*args, **kwargs)
            waited, here = None, True
            try:
                waited = which(args[0])
                here = waited is not None or self.device.waits(args[0])
            except Exception:  # tensors without an address: fake ones, subclasses
                waited = None
            if not (here and self.wait_begins()):
                return original(*args, **kwargs)
            try:
                return original(*args, **kwargs)
            finally:
                for collective in waited or ():
                    if collective.end is None:
                        collective.end = time.perf_counter_ns()
                self.wait_over(waited)

        return wrapper

    def before_wait(self) -> Callable[..., Any]:
        """Runs in front of the operator by which functional collectives are waited for."""
        operator = private.wait_operator(torch)

        def by_output(tensor: Any) -> tuple[Collective, ...] | None:
            address = tensor.data_ptr()
            return next(((each,) for each in reversed(self.open.values()) if each.address == address), None)

        def run(keyset: Any, tensor: Any) -> Any:
            return waiting(tensor, keyset)

        waiting = self.blocking(lambda tensor, keyset: operator.redispatch(keyset & self.below, tensor), by_output)
        return run


def _tensors(values: Any) -> Iterator[Any]:
    """Without asking a ScriptObject for an attribute that it lacks, which takes it ten microseconds to deny."""
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _tensors(value)
        elif isinstance(value, torch.Tensor):
            yield value


def _bytes(op: Op, args: tuple[Any, ...], ranks: int) -> int:
    """What all the ranks have together: the largest argument, be it a tensor or a list of them.

    Of a gather or scatter only the root has such an argument, so it is every rank's own part, times the ranks.
    """
    sizes = [sum(t.nbytes for t in _tensors([value])) for value in args]
    if op.name in ("gather", "scatter"):
        return ranks * min(filter(None, sizes), default=0)
    return max(sizes, default=0)


def _in_a_thread_of_torch() -> bool:
    """Whether this is a thread of torch, in which a communication hook goes on, and not one of the script."""
    return isinstance(threading.current_thread(), threading._DummyThread)


def _compare_counts(recorder: Recorder, seen: dict[str, int], issuing: Issuing) -> Uninstall:
    """Runs before each update, in the training thread: tells where torch counted collectives of which none was seen."""

    said = False

    def compare() -> None:
        nonlocal said
        try:
            issuing.tidy()
            if not said and private.symmetric_memory_in_use():
                said = True
                recorder.note("comm", private.SYMMETRIC_UNSEEN)
            if unseen := count.unseen():
                recorder.emit(Kind.UNSEEN, unseen)
                issuing.move()  # from now on they may be seen
        except Exception as error:
            recorder.losses.add(COUNT, error)
            forget()

    def forget() -> None:
        recorder.before_update = None

    try:
        count = TorchCount(seen, lambda: private.group_names(dist))
        count.unseen()  # what there was before the hooks
        recorder.before_update = compare
    except Exception as error:  # private names of torch: without them nothing is compared
        recorder.losses.add(COUNT, error)
        forget()
    return forget


def install(around: Surroundings) -> Uninstall:
    """Raises RuntimeError or AttributeError where this torch cannot be hooked: communication is then not measured."""
    recorder = around.recorder
    hooks = _Collectives(recorder, around.streams)
    issuing = Issuing(recorder.losses, hooks.at_dispatcher, hooks.at_method)
    library = torch.library.Library(private.FUNCTIONAL, "IMPL")
    library.impl(private.WAIT, hooks.before_wait(), private.KEY, with_keyset=True)
    broadcast = issuing.before(vars(dist)[private.BROADCAST], private.BROADCAST_OPERATOR)
    recorder.after_backward = hooks.backward_over

    def forget() -> None:
        recorder.after_backward = None

    return all_of(
        forget,
        _compare_counts(recorder, hooks.seen, issuing),
        private.take_back(library),
        issuing.install(),
        replace(hooks.work, "wait", hooks.blocking(hooks.work.wait, hooks.waited_for)),
        replace(dist, private.BROADCAST, hooks.blocking(broadcast, lambda group: None)),
    )
