"""Collectives: what is noted of each when it is issued, and the places where the training thread waits for them.

`interception` says where they are seen. The Work's future tells when a collective ends, if the backend has futures.
gloo's reduce-scatter has none, so its end is the time at which it is first seen to be over; the same goes for the last
collective of a backward (`follow_last`). A synchronous collective ends when the wait that follows it at once is over.
Waits: the end of DDP's backward, `Work.wait`, `wait_tensor`, DDP's blocking broadcast. On devices streams wait, see
`DeviceCollectives` and `streams`.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Container
from typing import Any

import torch
import torch.distributed as dist

from ddlprof.base.real_time import time
from ddlprof.collect.drops import COLLECTIVE, COLLECTIVE_END, STREAM_WAIT
from ddlprof.collect.hooks.collective import (
    CollectivesInFlight,
    DeviceCollectives,
    Endpoints,
    Groups,
    IssuedCollective,
    Op,
    tensors,
    whole_bytes,
)
from ddlprof.collect.hooks.context import HookContext
from ddlprof.collect.hooks.interception import Interception, compare_counts
from ddlprof.collect.hooks.routing import UNEVEN, Routing
from ddlprof.collect.hooks.streams import Streams
from ddlprof.collect.install import Uninstall, all_of, replace
from ddlprof.collect.process.issuers import IssuerLook
from ddlprof.collect.recorder import Recorder
from ddlprof.collect.seen_groups import LATEST, CollectiveCounter, SeenGroups
from ddlprof.model.events import Kind
from ddlprof.torch_private import collectives as private
from ddlprof.torch_private.engine import call_at_backward_end, graph_task
from ddlprof.torch_private.fake import is_fake_type

_COLLECTIVE = int(Kind.COLLECTIVE)  # an enumeration's attribute is slow to look up
_BEGIN, _END = int(Kind.COMM_BEGIN), int(Kind.COMM_END)


class _Collectives:
    def __init__(self, recorder: Recorder, streams: Streams, seen: SeenGroups) -> None:
        self.recorder = recorder
        self.streams = streams
        self.device = DeviceCollectives(self.streams)
        self.unbox_group, self.unbox_work = private.unboxing(torch)
        self.graph_task = graph_task(torch)
        self.call_at_backward_end = call_at_backward_end(torch)
        seen.counters = {}  # both of the next two count in it, from 0 as the ranks did when the hooks were installed
        self.groups = Groups(seen)
        self.endpoints = Endpoints(seen)
        self.task = -1
        self.on_device = False
        self.bound: Any = None
        """A device event: the end of the last collective of this backward."""
        self.in_backward = self.usual = 0
        """The numbers of collectives issued in this backward so far, and in the one before."""
        self.last: IssuedCollective | None = None
        """The last collective of this backward, provided that it has as many as the backward before."""
        self.in_flight = CollectivesInFlight()
        self.has_data: dict[type, bool] = {torch.Tensor: True, torch.nn.Parameter: True}
        """Classes of tensors, and whether their tensors have data: fake tensors have none."""
        self.below = private.below_backend_selection(torch)
        self.routing = Routing(recorder)
        self.issuers = IssuerLook()

    def at_dispatcher(self, name: str) -> Callable[..., Any]:
        """The function that runs in front of the operator `name`."""
        operator = getattr(torch.ops.c10d, name).default
        op = Op(operator, name)
        if uneven := name == UNEVEN:
            self.routing.know(operator)

        def run(keyset: Any, *args: Any, **kwargs: Any) -> Any:
            if not self.recorder.active:
                return operator.redispatch(keyset & self.below, *args, **kwargs)
            ready = time.perf_counter_ns()
            collective = process_group = tensor = None
            waits = at_once = False
            try:
                process_group = self.group_of(args)
                group = self.groups.of(process_group)
                group.counter.seen += 1
                task = self.graph_task()
                if self.is_of_step(task):
                    channel, counter, root = self.endpoints.find(op, args, group)
                    ranks = 2 if op.is_message else group.ranks
                    size = whole_bytes(op.name, args, ranks)
                    collective = IssuedCollective(channel, counter.noted, op.name, size, ranks, ready, root)
                    self.note(collective, counter, task)
                    if uneven:
                        self.routing.note(args, group.name, ranks)
                    tensor = next(tensors(args[:1]), None)
                    at_once = not op.is_asynchronous(args, kwargs)
                    waits = tensor is not None and self.waits_at_once(collective, tensor, at_once)
            except Exception as error:
                self.recorder.drops.add(COLLECTIVE, error)
            try:
                result = operator.redispatch(keyset & self.below, *args, **kwargs)
            finally:
                if waits and collective is not None:
                    self.wait_over((collective,))
            if collective is not None and tensor is not None:
                boxed = result[-1] if isinstance(result, tuple) else result
                self.follow(collective, process_group, tensor, at_once, boxed)
            return result

        return run

    def at_method(
        self, original: Callable[..., Any], form: private.Form, here: Container[str], elsewhere: Callable[[str], None]
    ) -> Any:
        """The function that runs in place of a method of `ProcessGroup`.

        `here`: the operators still seen at methods; a script may keep this function until its operator has moved.
        `elsewhere` moves an operator whose arguments cannot be read here. Fast: a step may issue hundreds.
        """
        recorder, known, has_data, now = self.recorder, self.groups.known, self.has_data, time.perf_counter_ns
        options, count, largest, listed = private.options(torch, form), form.place + 1, form.largest, form.listed
        graph_task, get_ident = self.graph_task, threading.get_ident
        by_work, patched_works = self.in_flight.by_work, self.in_flight.patched_works
        operator, rooted, tells = form.operator, form.rooted, private.tells_whether_asynchronous(torch, form)
        name = operator.strip("_")

        def run(process_group: Any, *args: Any, **kwargs: Any) -> Any:
            if not recorder.active or operator not in here:
                return original(process_group, *args, **kwargs)
            ready = now()
            collective = None
            waits, at_once, on_host = False, False, True
            try:
                how: Any = args[-1] if len(args) == count else None
                if type(how) is not options or kwargs or (listed and len(args[0]) != 1):
                    elsewhere(operator)
                elif has_data.get(type(tensor := args[0][0] if listed else args[0])) or self.learn(type(tensor)):
                    group = known.get(id(process_group))
                    if group is None or group.reference() is not process_group:
                        group = self.groups.of(process_group)
                    counter, task = group.counter, graph_task()
                    counter.seen += 1
                    if (get_ident() == recorder.thread and not by_work) or self.is_of_step(task):
                        size = (tensor if listed else args[largest]).nbytes
                        root = group.rank(how.rootRank) if rooted else None
                        collective = IssuedCollective(group.name, counter.noted, name, size, group.ranks, ready, root)
                        self.note(collective, counter, task)
                        at_once, on_host = tells and not how.asyncOp, tensor.is_cpu
                        waits = not on_host and self.waits_at_once(collective, tensor, at_once)
            except Exception as error:
                recorder.drops.add(COLLECTIVE, error)
            try:
                work = original(process_group, *args, **kwargs)
            finally:
                if waits and collective is not None:
                    self.wait_over((collective,))
            if collective is not None:
                if on_host and at_once and type(work) in patched_works:
                    by_work[work] = collective  # `of_work` is about to take it out
                else:
                    self.follow(collective, process_group, tensor, at_once, work)
            return work

        return run

    def learn(self, kind: type) -> bool:
        """Whether tensors of a class have data; if not (fake tensors), the collective is only being traced."""
        self.has_data[kind] = not is_fake_type(kind)
        return self.has_data[kind]

    def is_of_step(self, task: int) -> bool:
        """Whether a collective that this thread issues belongs to the step. `task`: the backward it is in, or -1."""
        if not (task != -1 or threading.get_ident() == self.recorder.thread or _in_a_thread_of_torch()):
            return False
        if self.in_flight.by_work:
            self.in_flight.let_go()
        return True

    def note(self, collective: IssuedCollective, counter: CollectiveCounter, task: int) -> None:
        """Records a collective that is about to be issued. `task`: the backward that it is issued in, or -1."""
        if counter.noted < LATEST:
            counter.latest.append(collective)
        else:
            counter.latest[counter.noted % LATEST] = collective
        counter.noted += 1
        if self.recorder.boundaries >= self.issuers.due:
            collective.stack = self.issuers.take(self.recorder.boundaries)
        self.recorder.emit_in_backward(_COLLECTIVE, collective)
        if task != -1:
            self.expect_wait(task, collective)

    def group_of(self, args: tuple[Any, ...]) -> Any:
        """The process group among the operator's arguments."""
        for value in args:
            if isinstance(value, torch.ScriptObject):
                try:
                    return self.unbox_group(value)
                except RuntimeError:  # a ReduceOp
                    continue
        raise LookupError("no process group")

    def waits_at_once(self, collective: IssuedCollective, tensor: Any, at_once: bool) -> bool:
        """Whether the clock's stream waits at once for a collective on a device; records the begin of that wait."""
        try:
            if tensor.is_cpu:
                return False
            device = tensor.device
            if not self.device.is_on(device) or torch.compiler.is_compiling():
                return False
            return self.device.issued(collective, device, not at_once) and self.wait_begins()
        except Exception as error:
            self.recorder.drops.add(STREAM_WAIT, error)
            return False

    def wait_begins(self) -> bool:
        """Records the begin of a wait; False if the step does not wait, or if it is inside another wait."""
        streams = self.streams
        if not streams.busy and streams.of_step():
            streams.busy = self.recorder.emit_in_backward(_BEGIN)
            return streams.busy
        return False

    def wait_over(self, waited: tuple[IssuedCollective, ...] | None, bounded: Any = False) -> None:
        """Ends the wait that began with `wait_begins`."""
        self.streams.busy = False
        self.recorder.emit_in_backward(_END, bounded, waited, self.streams.tell())

    def follow(self, collective: IssuedCollective, process_group: Any, tensor: Any, at_once: bool, result: Any) -> None:
        """Has a collective on the host report its end; on a device, a future only tells that it was enqueued."""
        try:
            work = self.unbox_work(result) if isinstance(result, torch.ScriptObject) else result
            if tensor.is_cpu:
                if work is None:
                    return
                self.in_flight.add(work, collective, tensor)
                if collective is not self.last and not (at_once and type(work) in self.in_flight.patched_works):
                    self.in_flight.follow(work, collective)
                return
            self.on_device = True
            if collective.stream and not at_once:
                self.device.follow(collective, process_group, work)
        except Exception as error:
            self.recorder.drops.add(COLLECTIVE_END, error)

    def follow_last(self) -> None:
        """Called at the end of a backward: settles its last collective, which was issued without a callback.

        The backward has mostly waited for it already, and its callback would have run at the very moment in which the
        training thread needs the interpreter's lock.
        """
        last, self.last = self.last, None
        self.usual, self.in_backward = self.in_backward or self.usual, 0
        if last is None or last.end is not None:
            return
        with contextlib.suppress(Exception):  # no future: as in `follow`
            self.in_flight.see_ends()
            if last.end is None:  # not waited for in the backward
                self.in_flight.follow(self.in_flight.work_of(last), last)

    def expect_wait(self, task: int, collective: IssuedCollective) -> None:
        """Queues `backward_computed` once for the backward `task`, so that it runs just before DDP's wait.

        The autograd engine runs its final callbacks in order. A backward inside a backward has final callbacks of its
        own, and DDP's wait may be among them.
        """
        if self.call_at_backward_end is None:
            return
        if task != self.task:
            self.task = task
            self.call_at_backward_end(self.backward_computed)
        self.in_backward += 1
        self.last = collective if self.in_backward == self.usual else None

    def backward_computed(self) -> None:
        """Called when all gradients are computed; the rest of this backward is waiting and copying."""
        if self.last is not None:
            with contextlib.suppress(Exception):
                self.in_flight.see_ends()  # it may be over already
        if self.wait_begins():
            try:
                self.bound = self.device.backward_computed()
            except Exception as error:
                self.recorder.drops.add(STREAM_WAIT, error)

    def update_over(self) -> None:
        """Called at the end of an update: nothing of the step is held longer."""
        self.in_flight.let_go()
        self.device.rest()
        self.streams.rest()

    def backward_over(self) -> None:
        """Called when the backward returns to the training thread."""
        self.follow_last()
        self.device.backward_over()
        if self.streams.busy:
            bound, self.bound = self.bound, None
            self.wait_over(None, True if bound is None else bound)

    def waited_for(self, work: Any) -> tuple[IssuedCollective, ...] | None:
        """The collectives that a wait for `work` waits for: empty if it has completed, None if it is not known."""
        collective = self.in_flight.by_work.get(work)
        if collective is not None:
            return (collective,)
        return () if not self.on_device and work.is_completed() else None

    def blocking(
        self, original: Callable[..., Any], which: Callable[[Any], tuple[IssuedCollective, ...] | None]
    ) -> Callable[..., Any]:
        """Wraps a call that waits for communication; `which` finds the collectives by the call's first argument."""

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
            try:
                here = here and self.wait_begins()
                return original(*args, **kwargs)
            finally:
                self.in_flight.over(waited or ())
                if here:
                    self.wait_over(waited)

        return wrapper

    def of_work(self, kind: Any) -> Uninstall:
        """Replaces `wait` of a class of Works: does what `blocking` does, in fewer calls where the Work is known."""
        original = kind.wait
        by_work = self.in_flight.by_work
        streams = self.streams
        recorder = self.recorder
        now = time.perf_counter_ns
        get_ident = threading.get_ident
        graph_task = self.graph_task
        others, is_compiling = self.blocking(original, self.waited_for), torch.compiler.is_compiling

        @functools.wraps(original)
        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            collective = None if is_compiling() else by_work.pop(work, None)
            if collective is None:
                return others(work, *args, **kwargs)
            begun = (get_ident() == recorder.thread or graph_task() != -1) and not streams.busy
            try:
                if begun:
                    streams.busy = begun = recorder.emit_in_backward(_BEGIN)
                return original(work, *args, **kwargs)
            finally:
                if collective.end is None:
                    collective.end = now()
                if begun:
                    streams.busy = False
                    recorder.emit_in_backward(_END, False, (collective,), streams.tell())

        self.in_flight.patched_works.add(kind)
        return replace(kind, "wait", wait)

    def before_wait(self) -> Callable[..., Any]:
        """The function that runs in front of `wait_tensor`, which waits for functional collectives."""
        operator, which = private.wait_operator(torch), self.in_flight.with_output

        def run(keyset: Any, tensor: Any) -> Any:
            return waiting(tensor, keyset)

        waiting = self.blocking(lambda tensor, keyset: operator.redispatch(keyset & self.below, tensor), which)
        return run


def _in_a_thread_of_torch() -> bool:
    """Whether this is a thread of torch, in which a communication hook goes on, and not one of the script."""
    return isinstance(threading.current_thread(), threading._DummyThread)


def install(context: HookContext) -> Uninstall:
    """Hooks all collectives and the waits for them.

    Raises RuntimeError or AttributeError if this torch cannot be hooked; communication is then not measured.
    """
    recorder = context.recorder
    hooks = _Collectives(recorder, context.streams, context.groups)
    interception = Interception(recorder.drops, hooks.at_dispatcher, hooks.at_method)
    library = torch.library.Library(private.FUNCTIONAL, "IMPL")
    library.impl(private.WAIT, hooks.before_wait(), private.KEY, with_keyset=True)
    broadcast = interception.before(vars(dist)[private.BROADCAST], private.BROADCAST_OPERATOR)
    recorder.after_backward = hooks.backward_over
    return all_of(
        functools.partial(setattr, recorder, "after_backward", None),
        hooks.routing.flush,
        compare_counts(recorder, hooks.groups.seen, interception, hooks.update_over),
        private.take_back(library),
        interception.install(),
        *(hooks.of_work(kind) for kind in private.works(torch)),
        replace(dist, private.BROADCAST, hooks.blocking(broadcast, lambda group: None)),
    )
