"""Collectives, seen at the dispatcher (`c10d::*`), and the places where the training thread waits for them.

Redispatching an operator changes no result, unlike a DDP communication hook of our own, which rounds differently. The
key is BackendSelect: below autograd, so that it also sees what tensor parallelism and DTensor issue, and above every
backend. Completion is the Work's future where the backend has one; gloo's reduce-scatter has none, and ends, for us,
when it is seen to be over; so does the last of a backward (`follow_last`). Waits: the end of DDP's backward,
`Work.wait`, `wait_tensor`, DDP's blocking broadcast. On devices streams wait, see `device_collectives` and `streams`.
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
from ddlprof.collect.hooks.ends import Ends, Op
from ddlprof.collect.hooks.torch_count import TorchCount
from ddlprof.collect.install import Uninstall, all_of, replace
from ddlprof.collect.losses import COLLECTIVE, COLLECTIVE_END, COUNT, STREAM_WAIT
from ddlprof.collect.process.real_time import time
from ddlprof.collect.recorder import Recorder
from ddlprof.collect.shared.streams import Streams
from ddlprof.collect.surroundings import Surroundings
from ddlprof.collect.torch_private import collectives as private
from ddlprof.collect.torch_private.engine import call_at_backward_end, graph_task
from ddlprof.model.events import Kind

_OPERATORS = (
    "allreduce_", "allreduce_coalesced_", "broadcast_", "reduce_", "allgather_", *private.PRIVATE_OPERATORS,
    "allgather_into_tensor_coalesced_", "allgather_coalesced_", "reduce_scatter_",
    "reduce_scatter_tensor_coalesced_", "gather_", "scatter_", "alltoall_", "alltoall_base_", "barrier",
    "send", "recv_", "recv_any_source_",
)  # fmt: skip
_MOST_OPEN = 4096


class Collective:
    """One collective of this rank; times are nanoseconds on the monotonic clock, None while not known.

    `issued` is when the host did so; `ready` the same, or when the device could begin (`collective_durations`).
    """

    __slots__ = ("bytes", "duration", "end", "exposed", "group", "issued", "need", "op", "ranks", "ready", "root",
                 "seq", "way")  # fmt: skip

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
        self.duration: int | None = None
        self.end: int | None = None
        self.need: int | None = None
        self.exposed: int | None = None
        self.way: Any = None
        """The stream it was issued on, if that does not tell by itself who waits for it."""

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
        self.outputs: dict[int, Collective] = {}
        """Collectives by address of the output, which is all that `wait_tensor` gets."""
        self.below = private.below_backend_selection(torch)

    def implementation(self, name: str) -> Callable[..., Any]:
        """The function that runs in front of the operator `name`."""
        operator = getattr(torch.ops.c10d, name).default
        op = Op(operator, name)

        def run(keyset: Any, *args: Any, **kwargs: Any) -> Any:
            collective = self.issued(op, args)
            if collective is None:
                return operator.redispatch(keyset & self.below, *args, **kwargs)
            waits = self.waits_at_once(op, collective, args, kwargs)
            try:
                result = operator.redispatch(keyset & self.below, *args, **kwargs)
            finally:
                if waits:
                    self.wait_over((collective,))
            self.follow(op, collective, args, kwargs, result)
            return result

        return run

    def issued(self, op: Op, args: tuple[Any, ...]) -> Collective | None:
        """Notes a collective; None where it is not the step's, or cannot be told what it is."""
        if not self.recorder.active:
            return None
        ready = time.perf_counter_ns()
        try:
            group = self.group_of(args)
            group_name = str(group.group_name)
            self.seen[group_name] = self.seen.get(group_name, 0) + 1
            if not (self.streams.of_step() or _in_a_thread_of_torch()):
                return None
            self.look_at_open()
            name, root = self.ends.find(op, args, group, group_name)
            seq = self.sequence.get(name, 0)
            self.sequence[name] = seq + 1
            ranks = 2 if op.is_message else group.size()
            collective = Collective(name, seq, op.name, _bytes(op, args, ranks), ranks, ready, root)
            self.recorder.emit_in_backward(Kind.COLLECTIVE, collective)
            self.expect_wait(collective)
            return collective
        except Exception as error:
            self.recorder.losses.add(COLLECTIVE, error)
            return None

    def group_of(self, args: tuple[Any, ...]) -> Any:
        """The process group among the operator's arguments."""
        for value in args:
            if isinstance(value, torch.ScriptObject):
                try:
                    return self.unbox_group(value)
                except RuntimeError:  # a ReduceOp
                    continue
        raise LookupError("no process group")

    def waits_at_once(self, op: Op, collective: Collective, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Of a collective on a device: whether the clock's stream waits for it at once, which then begins."""
        try:
            tensor = next(_tensors(args[:1]), None)
            device = torch.device("cpu") if tensor is None else tensor.device
            if device.type != self.streams.accelerator.kind or torch.compiler.is_compiling():
                return False
            if not self.device.issued(collective, device, op.is_asynchronous(args, kwargs)):
                return False
            return self.wait_begins()
        except Exception as error:
            self.recorder.losses.add(STREAM_WAIT, error)
            return False

    def wait_begins(self) -> bool:
        """Whether it is recorded: the step waits, and not as a part of another wait."""
        streams = self.streams
        if not streams.busy and streams.of_step():
            streams.busy = self.recorder.emit_in_backward(Kind.COMM_BEGIN)
            return streams.busy
        return False

    def wait_over(self, waited: tuple[Collective, ...] | None, bounded: Any = False) -> None:
        """Ends the wait that began with `wait_begins`."""
        self.streams.busy = False
        self.recorder.emit_in_backward(Kind.COMM_END, bounded, waited, self.streams.tell())

    def follow(
        self, op: Op, collective: Collective, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        """Learns when it ends, if it is on the host: on a device its future only tells that it was enqueued."""
        try:
            tensor = next(_tensors(args[:1]), None)
            if tensor is None:
                return
            on_device = tensor.device.type != "cpu"
            self.on_device |= on_device
            if on_device and not (collective.way and op.is_asynchronous(args, kwargs)):
                return
            work = self.unbox_work(result[-1] if isinstance(result, tuple) else result)
            if on_device:
                self.device.follow(collective, self.group_of(args), work)
                return
            if len(self.open) >= _MOST_OPEN:  # a script that never waits
                self.open.clear()
                self.outputs.clear()
            self.open[work] = self.outputs[tensor.data_ptr()] = collective
        except Exception as error:
            self.recorder.losses.add(COLLECTIVE_END, error)
            return
        if collective is not self.last:
            with contextlib.suppress(Exception):  # no future: see `look_at_open` and `blocking`
                work.get_future().add_done_callback(collective.done)

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
                work = next(work for work, collective in self.open.items() if collective is last)
                work.get_future().add_done_callback(last.done)

    def see_ends(self) -> None:
        """The end of what has no callback is the first time that it is seen to be over."""
        for work, collective in list(self.open.items()):
            if collective.end is None and work.is_completed():
                collective.end = time.perf_counter_ns()

    def look_at_open(self) -> None:
        """Lets go of what is over."""
        self.see_ends()
        for work, collective in list(self.open.items()):
            if collective.end is not None:
                self.close(work)

    def close(self, work: Any) -> None:
        """Forgets a Work and its output."""
        collective = self.open.pop(work, None)
        for address in [a for a, c in self.outputs.items() if c is collective]:
            del self.outputs[address]

    def expect_wait(self, collective: Collective) -> None:
        """In backward: the engine's last callbacks run in order, so ours comes just before DDP's wait.

        A backward inside a backward has last callbacks of its own, and DDP's wait may be among them.
        """
        task = self.graph_task()
        if task == -1 or self.call_at_backward_end is None:
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
            with contextlib.suppress(Exception):  # tensors without an address: fake ones, subclasses
                waited = which(args[0])
                here = waited is not None or self.device.waits(args[0])
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
            collective = self.outputs.get(tensor.data_ptr())
            return None if collective is None else (collective,)

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


def _compare_counts(recorder: Recorder, seen: dict[str, int]) -> Uninstall:
    """Runs before each update, in the training thread: tells where torch counted collectives of which none was seen."""

    said = False

    def compare() -> None:
        nonlocal said
        try:
            if not said and private.symmetric_memory_in_use():
                said = True
                recorder.note("comm", private.SYMMETRIC_UNSEEN)
            if unseen := count.unseen():
                recorder.emit(Kind.UNSEEN, unseen)
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
    libraries = [torch.library.Library(name, "IMPL") for name in ("c10d", private.FUNCTIONAL)]
    for name in _OPERATORS:
        if hasattr(torch.ops.c10d, name):
            libraries[0].impl(name, hooks.implementation(name), private.KEY, with_keyset=True)
    libraries[1].impl(private.WAIT, hooks.before_wait(), private.KEY, with_keyset=True)
    work = private.work(torch)
    broadcast = vars(dist)[private.BROADCAST]
    recorder.after_backward = hooks.backward_over

    def forget() -> None:
        recorder.after_backward = None

    return all_of(
        forget,
        _compare_counts(recorder, hooks.seen),
        *(private.take_back(library) for library in libraries),
        replace(work, "wait", hooks.blocking(work.wait, hooks.waited_for)),
        replace(dist, private.BROADCAST, hooks.blocking(broadcast, lambda group: None)),
    )
