"""Hooks for host-to-device copies, for waits between streams, and for tensors that the host reads in the first steps.

Copies are calls of tensors' and modules' methods. Their hook is installed only if there is an accelerator; in a
CPU-only process, tensor methods are patched only in the first steps (`watch_host_reads`). Our wrappers are taken away
while dynamo traces, because it reads the dictionaries of classes.

Functions of the module `torch` that copy (`torch.tensor(device=)`, `as_tensor`, `asarray`, `_foreach_copy_`) are not
hooked, because a module shows the same object to everybody: dynamo guards by a function's identity, torch.export and
function modes compare it, TorchScript and FX look it up by identity, and `from torch import tensor` keeps it.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from ddlprof.collect.accelerator.protocol import Accelerator
from ddlprof.collect.drops import COPY_CALL
from ddlprof.collect.hooks.context import HookContext
from ddlprof.collect.hooks.method_wrappers import (
    MethodWrapper,
    MethodWrappers,
    ReportingWrapper,
    TensorWrapper,
    away_while_tracing,
)
from ddlprof.collect.hooks.streams import COPY, Streams
from ddlprof.collect.install import Uninstall, all_of, fail_open, replace
from ddlprof.collect.left_behind import Left
from ddlprof.collect.recorder import FIRST_STEPS, Recorder
from ddlprof.model.events import Kind
from ddlprof.torch_private.engine import dispatch_modes, no_torch_function

_READS = ("item", "tolist", "numpy", "__float__", "__int__", "__index__", "__bool__")
"""Methods by which the host reads a tensor."""

Rule = Callable[[Any, Any, Any], bool]
"""Whether a call with this object, arguments and keyword arguments copies from the host to a device.

It is called where no `__torch_function__` of the script's intercepts what it does with tensors.
"""
Worth = Callable[[Any, Any], bool]
"""A quick check of arguments and keyword arguments: False if the call is surely no copy, as most calls are."""


class _Rules:
    """Tells which calls are copies. `TensorWrapper` has already left out most tensors in the wrong memory."""

    def __init__(self, torch: Any, accelerator: Accelerator) -> None:
        self._kind = accelerator.kind
        self._holds = accelerator.holds
        self._tensor = torch.Tensor
        self._device = torch.device
        self._dtype = torch.dtype
        self._is_overridden = torch.overrides.has_torch_function_unary

    def may_move(self, args: Any, kwargs: Any) -> bool:
        target = _target(args, kwargs)
        kind = type(target)
        if kind is self._dtype:
            return False
        if kind is self._device:
            return bool(target.type == self._kind)
        if kind is str:
            return bool(target.startswith(self._kind))
        if isinstance(target, self._tensor):
            return bool(self._is_overridden(target) or self._holds(target))
        return kind is int

    def to(self, this: Any, args: Any, kwargs: Any) -> bool:
        target = _target(args, kwargs)
        return this.is_cpu and (not isinstance(target, self._tensor) or self._holds(target))

    def there(self, this: Any, args: Any, kwargs: Any) -> bool:
        return bool(this.is_cpu)

    def may_be_copied(self, args: Any, kwargs: Any) -> bool:
        source = args[0] if args else kwargs["other"]
        return bool(self._is_overridden(source) or source.is_cpu)

    def copy(self, this: Any, args: Any, kwargs: Any) -> bool:
        return bool(self._holds(this) and (args[0] if args else kwargs["other"]).is_cpu)

    def may_be_set(self, args: Any, kwargs: Any) -> bool:
        return isinstance(args[1], self._tensor) and (self._is_overridden(args[1]) or args[1].is_cpu)

    def set_items(self, this: Any, args: Any, kwargs: Any) -> bool:
        return bool(self._holds(this) and args[1].is_cpu)

    def may_change_type(self, args: Any, kwargs: Any) -> bool:
        return bool(args) and type(args[0]) is not self._dtype

    def type(self, this: Any, args: Any, kwargs: Any) -> bool:
        kind = args[0]
        named = isinstance(kind, str)
        return this.is_cpu and (kind.startswith(f"torch.{self._kind}.") if named else self._holds(kind))

    def new_tensor(self, this: Any, args: Any, kwargs: Any) -> bool:
        if not (self._holds(this) if kwargs.get("device") is None else self.may_move((), kwargs)):
            return False
        data = args[0] if args else kwargs["data"]
        return not isinstance(data, self._tensor) or data.is_cpu

    def module_to(self, this: Any, args: Any, kwargs: Any) -> bool:
        target = _target(args, kwargs)
        return (not isinstance(target, self._tensor) or self._holds(target)) and self.module_there(this, args, kwargs)

    def module_there(self, this: Any, args: Any, kwargs: Any) -> bool:
        first = next(iter(this.parameters()), None)
        return first is not None and bool(first.is_cpu)


def _target(args: Any, kwargs: Any) -> Any:
    """The device, dtype or tensor that is the target of a call of `to`."""
    return args[0] if args else kwargs.get("device", kwargs.get("other", kwargs.get("tensor")))


def _any(args: Any, kwargs: Any) -> bool:
    return True


class _Copies:
    def __init__(self, torch: Any, recorder: Recorder, accelerator: Accelerator, streams: Streams) -> None:
        self.recorder = recorder
        self.torch = torch
        self.accelerator = accelerator
        self.streams = streams
        self.nested = False
        self.left = Left(recorder)
        self.is_overridden = torch.overrides.has_torch_function
        self.modes = dispatch_modes(torch)

    def timed(self, owner: type, name: str, worth: Worth, rule: Rule, counts: Callable[[], bool]) -> Callable[..., Any]:
        """Wraps a method that may copy; `counts` is asked of each copy that is made."""
        original = getattr(owner, name)

        @functools.wraps(original)
        def wrapper(this: Any, *args: Any, **kwargs: Any) -> Any:
            copying = True
            try:
                try:
                    copying = worth(args, kwargs) and self.begins(rule, counts, this, args, kwargs)
                except Exception as error:  # whatever the script's objects do
                    self.recorder.drops.add(COPY_CALL, error)
                    copying = False
                if copying:
                    self.nested = True
                return original(this, *args, **kwargs)
            finally:
                if copying:
                    self.nested = False
                    self.recorder.emit(Kind.H2D_END)

        self.left.add(wrapper)
        wrapper.__module__ = getattr(original, "__module__", None)  # type: ignore[assignment]
        wrapper.__qualname__ = f"{owner.__name__}.{name}"  # as of a bound method of torch's
        return wrapper

    def begins(self, rule: Rule, counts: Callable[[], bool], this: Any, args: Any, kwargs: Any) -> bool:
        """Whether the call is a copy to be timed; if so, its begin has been recorded."""
        if self.nested and not self.left.behind(sys._getframe(1)):
            return False
        overridden = self.is_overridden((this, *args, *kwargs.values()))
        with no_torch_function(self.torch) if overridden else nullcontext():
            copying = rule(this, args, kwargs) and self.is_now() and counts()
            return copying and self.recorder.emit(Kind.H2D_BEGIN, _size(this))

    def is_now(self) -> bool:
        """Whether the device makes the copy now, which is so unless it is traced or captured.

        The thread does not matter, because prefetchers have threads of their own.
        """
        if self.torch.compiler.is_compiling() or self.modes() or not self.recorder.active:
            return False
        # Asking for a stream before the device is initialised would do that, or fail.
        return self.accelerator.in_use() and not self.accelerator.is_capturing()

    def on_stream(self) -> bool:
        """Whether the clock's stream is the current one; a copy on another stream is noted for that stream."""
        if self.streams.on_clock_stream():
            return True
        self.streams.note(self.accelerator.current_stream(), COPY)
        return False


def install(context: HookContext) -> Uninstall:
    """Times copies from host to device memory on the clock's stream; copies on other streams are only noted there."""
    torch, accelerator, wrappers = context.torch, context.accelerator, MethodWrappers()
    if accelerator is None:
        return wrappers.take
    copies, rules = _Copies(torch, context.recorder, accelerator, context.streams), _Rules(torch, accelerator)
    tensor, module, there = torch.Tensor, torch.nn.Module, accelerator.kind
    for name, of_host, worth, rule in (
        ("to", True, rules.may_move, rules.to),
        (there, True, _any, rules.there),
        ("type", True, rules.may_change_type, rules.type),
        ("copy_", False, rules.may_be_copied, rules.copy),
        ("new_tensor", False, _any, rules.new_tensor),
        ("__setitem__", False, rules.may_be_set, rules.set_items),
    ):
        if hasattr(tensor, name):
            timed = copies.timed(tensor, name, worth, rule, copies.on_stream)
            is_overridden = torch.overrides.has_torch_function_unary
            wrappers.add(tensor, name, TensorWrapper(getattr(tensor, name), timed, of_host, is_overridden))
    for name, worth, rule in (("to", rules.may_move, rules.module_to), (there, _any, rules.module_there)):
        if hasattr(module, name):
            timed = copies.timed(module, name, worth, rule, copies.on_stream)
            wrappers.add(module, name, MethodWrapper(getattr(module, name), timed))
    return away_while_tracing(context, wrappers, "h2d")


def _size(value: Any) -> int | None:
    return getattr(value, "nbytes", None)


def time_stream_waits(context: HookContext) -> Uninstall:
    """Hooks waits of the clock's stream, or of the host, for streams that carry collectives or host-to-device copies.

    FSDP, ZeRO and prefetchers issue these on streams of their own. The classes of torch.cuda make streams wait by
    `Event.record` and `Event.wait`, which `wait_stream` and `wait_event` call; the host waits by `synchronize`. Not
    seen are waits of `torch.Stream` and `torch.Event` themselves (`torch.accelerator`), which are written in C, and
    waits that C++ code makes.
    """
    accelerator, streams, wrappers = context.accelerator, context.streams, MethodWrappers()
    if accelerator is None:
        return wrappers.take
    streams.begin_anew()
    event, stream = accelerator.event_type, accelerator.stream_type
    methods: list[tuple[Any, str, Callable[..., Any]]] = []
    if event is not None:
        methods += [
            (event, "record", streams.recording(event.record)),
            (event, "wait", streams.timed(event.wait, streams.event_waits)),
            (event, "synchronize", streams.timed(event.synchronize, streams.host_waits_for_event)),
        ]
    if stream is not None:
        methods += [(stream, "synchronize", streams.timed(stream.synchronize, streams.host_waits_for_stream))]
    for owner, name, wrapper in methods:
        wrappers.add(owner, name, MethodWrapper(vars(owner)[name], wrapper))
    uninstalls = [away_while_tracing(context, wrappers, "comm")]
    if accelerator.device_wait is not None:
        owner, name = accelerator.device_wait
        timed = streams.timed(getattr(owner, name), streams.host_waits_for_device)
        uninstalls.append(replace(owner, name, timed))
    return all_of(*uninstalls)


def watch_host_reads(context: HookContext) -> Uninstall:
    """Tells `NoGradModules` when the host reads numbers from tensors, but not truth values, which are mostly checks.

    This tells models that act or are evaluated from teachers. After the first steps, the original methods are put back.
    """
    torch, recorder, wrappers = context.torch, context.recorder, MethodWrappers()
    no_grad = context.modules.no_grad

    def look(this: Any) -> None:
        if threading.get_ident() != recorder.thread:
            return
        if recorder.boundaries > FIRST_STEPS:
            context.later(wrappers.take)
            return
        with no_torch_function(torch):
            if this.dtype is not torch.bool:
                no_grad.reads(this.dim(), this.is_floating_point())

    look = fail_open(look, recorder)

    for name in _READS:
        wrappers.add(torch.Tensor, name, ReportingWrapper(getattr(torch.Tensor, name), look))
    return away_while_tracing(context, wrappers)
