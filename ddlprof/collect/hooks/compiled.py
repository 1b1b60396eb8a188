"""torch.compile: calls of compiled functions (forward, loss, a whole step, or an update alone), and time to compile.

Dynamo calls hooks of a compiled function's context before it takes over frames and after, so it never compiles
a frame of ours. Only at the end of a call is it known what the call was: a forward if autograd has recorded operations,
an update if parameters or states of an optimizer have changed. Nothing is imported before the script uses
torch.compile.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import weakref
from collections.abc import Callable
from typing import Any

from ddlprof.base.real_time import time
from ddlprof.collect.compiler import around_tracing
from ddlprof.collect.drops import COMPILED_CALL
from ddlprof.collect.hooks.context import HookContext
from ddlprof.collect.hooks.modules import OuterModules, samples_in
from ddlprof.collect.hooks.optimizers import OptimizerSteps, UpdateWatch
from ddlprof.collect.install import Uninstall, all_of, fail_open, replace
from ddlprof.collect.process.on_import import after_import
from ddlprof.model.events import Kind
from ddlprof.model.records import COMPILATION
from ddlprof.operators.parameters import own_parameters
from ddlprof.torch_private import compile, engine

_contexts: weakref.WeakKeyDictionary[Any, None] = weakref.WeakKeyDictionary()
_optimizers: weakref.WeakKeyDictionary[Any, None] = weakref.WeakKeyDictionary()
"""The contexts and optimizers made in this process since the hooks were first installed, in the order in which they
were made. They are kept for hooks that are removed and installed again."""

_LOOKED_AT_STEPS = 1
"""The number of first steps in which `ddlprof.collect.facts.model_inspector` needs the module."""


class _Forward:
    """Whether a call was a forward with gradients. True until the call is over, because whoever asks earlier has seen a
    step end inside the call.
    """

    def __init__(self) -> None:
        self.answer = True

    def __bool__(self) -> bool:
        return self.answer


class _Call:
    """One outermost call of a compiled function. Dynamo calls this object at the end of the call; if dynamo raises an
    error of its own instead, the call ends when this object is freed.
    """

    def __init__(self, calls: CompiledCalls, forward: _Forward, recorded: int | None) -> None:
        self._calls = calls
        self._forward: _Forward | None = forward
        self._recorded = recorded
        self._over = False

    def __call__(self) -> None:
        if not self._over:
            try:
                self._calls.over(self)
            except Exception as error:  # fail open: this is inside the script's call
                self._calls.recorder.drops.add(COMPILED_CALL, error)
            self._over = True

    __del__ = __call__

    def end_forward(self, backward_inside: bool = False) -> None:
        """Ends the forward, at the end of the call or once it turns out to be more than a forward.

        To be called before the end of the step, which asks whether this was a forward.
        """
        forward = self._forward
        if forward is not None:
            self._calls.modules.inside, self._forward = False, None
            recorded = self._recorded == -1 or self._recorded not in (None, self._calls.recorded())
            forward.answer = recorded or backward_inside
            self._calls.recorder.emit(Kind.FORWARD_END, forward)


def _nothing() -> None:
    pass


class CompiledCalls:
    """Dynamo calls `enter` when a compiled function is called, and what that returns at the call's end."""

    def __init__(self, modules: OuterModules, steps: OptimizerSteps) -> None:
        self.torch = modules.torch
        self.recorder = modules.recorder
        self.modules = modules
        self.steps = steps
        self._count: Callable[[], int] | None = engine.recorded_operations(self.torch)
        self._graph_task = engine.graph_task(self.torch)
        self._set_callback = compile.set_callback(self.torch)
        self._call: weakref.ref[_Call] | None = None

    def recorded(self) -> int | None:
        """The number of operations autograd has recorded in this thread; -1 if unknown, None without gradients."""
        if not self.torch.is_grad_enabled():
            return None
        return self._count() if self._count is not None else -1

    def enter(self) -> Callable[[], None]:
        """Called by dynamo when a compiled function is called; what it returns is called at the end."""
        inside = self.modules.inside and not self.modules.left_behind(sys._getframe())
        if inside or not self.recorder.listens():
            return _nothing
        try:
            if self.torch.compiler.is_compiling() or self._graph_task() != -1:
                return _nothing
            return self._begin(_wrapper(sys._getframe(1)))
        except Exception as error:
            self.recorder.drops.add(COMPILED_CALL, error)
            return _nothing

    def _begin(self, wrapper: dict[str, Any]) -> _Call:
        function, args = inspect.unwrap(wrapper.get("fn", _nothing)), wrapper.get("args", ())
        owner = getattr(function, "__self__", None)
        if self.recorder.boundaries <= _LOOKED_AT_STEPS and self.torch.is_grad_enabled():
            inputs = (*args, *(wrapper.get("kwargs") or {}).values())
            self.modules.look(_module(function, args, self.torch.nn.Module), inputs)
        forward, recorded = _Forward(), self.recorded()
        training_mode = owner.training if isinstance(owner, self.torch.nn.Module) else None
        samples = samples_in(args, wrapper.get("kwargs"))
        call = _Call(self, forward, recorded)
        if self._call is None or self._call() is None:  # otherwise this is inside a compiled loop
            self._watch()
            self._call = weakref.ref(call)
        self.modules.compiled = weakref.ref(call)
        self.modules.inside = self.recorder.emit(Kind.FORWARD_BEGIN, forward, training_mode, samples)
        return call

    def _watch(self) -> None:
        begin = self.recorder.fetching.begin()
        self.steps.watch = UpdateWatch(list(_optimizers))
        self.recorder.before_waiting = self._before
        self.recorder.fetching.end(begin)

    def _before(self, kind: int) -> None:
        """Called when compiled code, parts of which run as Python, asks for a batch or begins a backward."""
        if self._set_callback is None:
            return
        callback = self._set_callback(None)  # or dynamo would try to compile all that is called from here
        try:
            call = self._call() if self._call is not None else None
            self._find_updates(call)
            if kind == Kind.DATA_BEGIN and call is not None:
                call.end_forward()  # it is a loop
        except Exception as error:  # fail open
            self.recorder.drops.add(COMPILED_CALL, error)
        finally:
            self._set_callback(callback)

    def over(self, call: _Call) -> None:
        """Finds out, at the end of a call, what it was."""
        self._find_updates(call)
        call.end_forward()
        outermost = self._call() if self._call is not None else None
        if outermost is None or outermost is call:
            self._call = self.steps.watch = self.recorder.before_waiting = None

    def _find_updates(self, call: _Call | None) -> None:
        """Records the updates inside compiled code that no hook of an optimizer has seen."""
        watch, begin = self.steps.watch, self.recorder.fetching.begin()
        updated = watch.updated(list(_optimizers)) if watch is not None else []
        self.recorder.fetching.end(begin)
        if not updated:
            return
        backward_inside = not self.recorder.holds(Kind.BACKWARD_BEGIN)
        if call is not None:
            call.end_forward(backward_inside)
        if backward_inside:
            self.recorder.emit(Kind.BACKWARD_BEGIN, True)
            self.recorder.emit(Kind.BACKWARD_END)
        for optimizer in updated:
            self.steps.updated(optimizer, sys._getframe())

    def adopt(self, context: Any) -> None:
        """Times the calls of everything that is compiled with this context."""
        compile.call_hooks(context).append(self.enter)
        _contexts[context] = None

    def release(self) -> None:
        """Removes the hook from all contexts."""
        for context in list(_contexts):
            hooks = compile.call_hooks(context)
            if self.enter in hooks:
                hooks.remove(self.enter)


def _wrapper(frame: Any) -> dict[str, Any]:
    """The local variables of the compiled function's wrapper; empty if they are not found.

    Before Python 3.12, the wrapper calls `enter` in a comprehension, which has a frame of its own.
    """
    for _ in range(2):
        variables: dict[str, Any] = frame.f_locals
        if "args" in variables:
            return variables
        frame = frame.f_back
    return {}


def _module(function: Any, args: tuple[Any, ...], kind: type) -> Any:
    """The largest module among the function's owner, arguments and variables; None if there is none."""
    found: list[Any] = [*args]
    with contextlib.suppress(Exception):  # whatever users' objects do
        for owner in (getattr(function, "__self__", None), *args[:1]):
            found += [owner, *getattr(owner, "__dict__", {}).values()]
        variables = inspect.getclosurevars(getattr(function, "__func__", function))
        found += [*variables.nonlocals.values(), *variables.globals.values()]
        return max((value for value in found if issubclass(type(value), kind)), key=_size, default=None)
    return None


def _size(module: Any) -> int:
    with engine.no_torch_function():  # of parameters that are a tensor class of the script's
        return sum(p.numel() for p in own_parameters(module))


def install(context: HookContext) -> Uninstall:
    """Times calls of all compiled functions, whether they were compiled before or will be."""
    calls = CompiledCalls(context.modules, context.steps)
    undo: list[Uninstall] = []
    Optimizer: Any = context.torch.optim.Optimizer
    original = Optimizer.__init__

    another_trains = fail_open(context.modules.another_trains, context.recorder)

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        with contextlib.suppress(Exception):  # one that cannot be a key
            _optimizers[self] = None
        another_trains()

    undo.append(replace(Optimizer, "__init__", __init__))
    undo.append(after_import(compile.EVAL_FRAME, lambda: undo.append(_hook_contexts(calls))))
    return lambda: all_of(*undo)()


def _hook_contexts(calls: CompiledCalls) -> Uninstall:
    """Hooks the contexts that exist and those made later, once dynamo is imported.

    torch imports dynamo at the script's first optimizer or torch.compile, whichever comes first.
    """
    try:
        kind = compile.contexts()
        original = kind.__init__
        for context in list(_contexts):
            calls.adopt(context)

        @functools.wraps(original)
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            try:
                calls.adopt(self)
            except Exception as error:
                calls.recorder.drops.add(COMPILED_CALL, error)

        return all_of(replace(kind, "__init__", __init__), calls.release)
    except Exception as error:  # another version of torch
        calls.recorder.note("compiled", f"calls of compiled functions are not timed: {type(error).__name__}: {error}")
        return _nothing


def time_compilations(context: HookContext) -> Uninstall:
    """Times how long torch.compile compiles the outermost frames, in any thread, including the backend's work.

    Nothing is imported before the script uses torch.compile. The time does not include graphs that are compiled or
    tuned only when they first run (a deferred backward, kernels of Triton).
    """
    spans, begins = context.recorder.spans, list[int]()  # dynamo lets one thread compile at a time

    def begin() -> None:
        begins.append(time.perf_counter_ns())

    def end() -> None:
        if not begins:
            return
        since = begins.pop()
        steps.due = True
        if not begins:
            spans.append((COMPILATION, since, time.perf_counter_ns()))

    def imported(calls: bool) -> None:
        begins.clear()  # importing is no compiling
        steps.hears_of_compilations = calls

    steps = context.steps
    steps.hears_of_compilations = True
    return around_tracing(begin, end, imported)
