"""Hooks for updates of optimizers, and for `zero_grad`.

Updates are observed by torch's global hooks, by a wrapper of `GradScaler.step`, which may skip them, and in compiled
code by the tensors that they change. Of nested updates only the outermost counts.
"""

from __future__ import annotations

import functools
import itertools
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ddlprof.base.guarded import dead_reference
from ddlprof.collect.install import Uninstall, all_of, fail_open, lose, removal, replace
from ddlprof.collect.left_behind import called_from
from ddlprof.collect.recorder import FIRST_STEPS, Recorder
from ddlprof.model.events import FirstSeen, Kind
from ddlprof.operators.parameters import parameters_of
from ddlprof.torch_private import modules
from ddlprof.torch_private.compile import unique_graphs
from ddlprof.torch_private.engine import graph_task, no_torch_function, version_of, version_or_none

_BEGIN, _END, _COMPILE = int(Kind.OPTIMIZER_BEGIN), int(Kind.OPTIMIZER_END), int(Kind.COMPILE)  # slow to look up
_ZERO_BEGIN, _ZERO_END = int(Kind.ZERO_GRAD_BEGIN), int(Kind.ZERO_GRAD_END)
_GROUPS = 4
"""The most parameter groups that are inspected, from both ends of the list; of each its first, middle and last
parameter."""
_MOST_ALIVE = 100
"""The most optimizers of which it is told that they exist when another one is seen for the first time."""

_Signature = tuple[list[Any], list[int]]


class OptimizerSteps:
    """Records the updates of optimizers. `running` has those that are now in `step`, outermost first.

    A step that raised an error leaves its entry in `running`; the next step notices that no running step has called it
    and removes the entry. Neither optimizers nor frames are kept alive, so that their memory is freed after an error.
    """

    def __init__(
        self,
        torch: Any,
        recorder: Recorder,
        look: Callable[[Any], None],
        trained_by: Callable[[Any], str | None] = lambda optimizer: None,
    ) -> None:
        """`look`: called with an optimizer before its step is recorded, in the first steps, and with one that steps
        first later. `trained_by`: called with an optimizer, once, returns the class of the model that it trains."""
        self._torch = torch
        self._graph_task = graph_task(torch)
        self._look = fail_open(look, recorder)
        self._trained_by = trained_by
        self.recorder = recorder
        self.watch: UpdateWatch | None = None
        """Finds the updates inside a compiled function while that is called; otherwise None."""
        self.ids: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self.running: list[Callable[[], Any]] = []
        self.codes: set[Any] = set()
        self.inner_steps = 0
        self.compilations = 0
        self._counter = itertools.count()
        self.last: Callable[[], Any] = dead_reference
        """A weak reference to the optimizer that stepped last."""
        self._first_parameter: Callable[[], Any] = dead_reference
        """A weak reference to the first parameter of the optimizer that was seen last for the first time."""
        self.number = 0
        """The number of the optimizer that stepped last, in events."""
        self.hears_of_compilations = False
        """Whether another hook sets `due` whenever torch.compile has compiled something."""
        self.due = True
        """Whether the next step has to check if torch.compile has compiled something."""

    def install(self) -> Uninstall:
        """Hooks the steps of every `torch.optim.Optimizer`, and the updates that a gradient scaler skips."""
        from torch.amp.grad_scaler import GradScaler
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        torch, recorder, steps = self._torch, self.recorder, self
        self.begin_anew()
        is_compiling = torch.compiler.is_compiling
        is_dynamo_compiling = torch.compiler.is_dynamo_compiling  # the recorder hears of any other
        in_backward, running = graph_task(torch), steps.running

        # The usual case is in one function, because a call of another function takes as long as its work.
        def before(optimizer: Any, args: Any, kwargs: Any) -> None:
            if is_dynamo_compiling():
                return
            again = not running and optimizer is steps.last() and not steps.due
            if not again or recorder.boundaries <= FIRST_STEPS or in_backward() != -1:
                steps.begin(optimizer, sys._getframe(1))
            elif recorder.emit(_BEGIN):
                running.append(steps.last)

        def after(optimizer: Any, args: Any, kwargs: Any) -> None:
            if is_dynamo_compiling():
                return
            alone = len(running) == 1 and running[0] is steps.last and optimizer is steps.last()
            if not alone or steps.watch is not None or in_backward() != -1:
                steps.end(optimizer)
            else:
                running.clear()
                recorder.emit(_END, steps.number, False)

        original = GradScaler.step

        @functools.wraps(original)
        def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if is_compiling() or not self.is_enabled() or not recorder.active:
                return original(self, optimizer, *args, **kwargs)
            steps.begin(optimizer, sys._getframe())
            before_steps = steps.inner_steps
            result = original(self, optimizer, *args, **kwargs)
            skipped: Any = steps.inner_steps == before_steps
            if not skipped and modules.skips_on_device(optimizer):
                skipped = _found_inf(self, optimizer)
            steps.end(optimizer, skipped)
            return result

        return all_of(
            removal(register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)),
            replace(GradScaler, "step", step),
        )

    def begin_anew(self) -> None:
        """Resets the state, because what happened while the hooks were removed is not known."""
        self.running.clear()
        self.watch = None
        self.due = True
        self.compilations = unique_graphs()

    def _inside(self, frame: Any) -> bool:
        """Whether `frame` is called from a step that is under way."""
        if self.running and not called_from(self.codes, frame):
            self.running.clear()
        return bool(self.running)

    def begin(self, optimizer: Any, frame: Any) -> None:
        """Called when a step begins. `frame`: the frame of the function around `step`."""
        try:  # here and in `end`, not by `quiet_method`: that is one more call in every step
            if self.running and self._inside(frame):
                self.inner_steps += 1
            else:
                if self.recorder.boundaries <= FIRST_STEPS:
                    self._look(optimizer)
                if not self._begin():
                    return
            self.codes.add(frame.f_code)
            self.running.append(weakref.ref(optimizer))
        except Exception as error:
            lose(self.recorder, OptimizerSteps.begin, error)

    def _begin(self) -> bool:
        if not self._emit(_BEGIN):
            return False
        self.due = not self.hears_of_compilations
        if self.compilations != (now := unique_graphs()):
            self.compilations = now
            self._emit(_COMPILE)
        return True

    def _emit(self, kind: int, *payload: Any) -> bool:
        # An optimizer in backward steps in the engine's thread, while the training thread waits.
        if self._graph_task() != -1:
            return self.recorder.emit_in_backward(kind, *payload)
        if self.recorder.active and not self.recorder.boundaries:
            self.recorder.thread = threading.get_ident()  # the thread that steps first is the training thread
        return self.recorder.emit(kind, *payload)

    def end(self, optimizer: Any, skipped: Any = False) -> None:
        """The step of this optimizer has ended. `skipped`: whether it was skipped, or a function that returns that."""
        try:
            while self.running:
                if self.running.pop()() is optimizer:
                    break
            else:
                return
            if self.watch is not None:
                self.watch.look(optimizer)
            if not self.running:
                self._end(optimizer, skipped)
        except Exception as error:
            lose(self.recorder, OptimizerSteps.end, error)

    def updated(self, optimizer: Any, frame: Any) -> None:
        """Records an update that compiled code has made; `frame` is that of its caller."""
        if self._inside(frame):
            self.inner_steps += 1
        elif self._begin():
            self._end(optimizer, False)
            self.last = dead_reference  # the function around its `step` is not known yet

    def _end(self, optimizer: Any, skipped: Any) -> None:
        first_seen = None
        if optimizer not in self.ids:
            self.ids[optimizer] = next(self._counter)
            first_seen = self._first_seen(optimizer)
        self.last, self.number = weakref.ref(optimizer), self.ids[optimizer]
        self._emit(_END, self.number, skipped, first_seen)

    def _first_seen(self, optimizer: Any) -> FirstSeen:
        try:
            model = self._trained_by(optimizer)
        except Exception:  # whatever the script's classes do
            model = None
        alive = frozenset(self.ids.values()) if len(self.ids) <= _MOST_ALIVE else None
        again = self._has_those_before(optimizer)
        if not again and self.recorder.boundaries > FIRST_STEPS:
            self._look(optimizer)
        return FirstSeen(
            type(optimizer).__name__, _parameters(optimizer), model, alive, again and _remembers(optimizer)
        )

    def _has_those_before(self, optimizer: Any) -> bool:
        """Whether the optimizer has the parameters of the one that was seen before it, by the first of them."""
        try:
            first = next(parameters_of(optimizer))
            before, self._first_parameter = self._first_parameter(), weakref.ref(first)
            return before is first
        except Exception:  # duck-typed optimizers, or one without parameters
            return False


def _remembers(optimizer: Any) -> bool:
    """Whether updates depend on those before them, as by momentum, and not only on gradients."""
    defaults = getattr(optimizer, "defaults", None)
    return isinstance(defaults, dict) and bool(defaults.get("momentum", True) or "alpha" in defaults)


def _parameters(optimizer: Any) -> int:
    try:
        with no_torch_function():  # of parameters that are a tensor class of the script's
            return sum(p.numel() for p in parameters_of(optimizer))
    except Exception:  # duck-typed optimizers, which a gradient scaler takes too
        return 0


def _found_inf(scaler: Any, optimizer: Any) -> Any:
    """Returns a function that says whether the update was skipped: fused optimizers decide that on the device."""
    found = tuple(modules.scaler_state(scaler, optimizer).get("found_inf_per_device", {}).values())

    def answer() -> bool:
        try:
            return any(bool(value.item()) for value in found)
        except RuntimeError:
            return False

    return answer


def optimizer_exists() -> bool:
    """Whether the process has ever made an optimizer: torch then marks the `step` of its class."""
    from torch.optim import Optimizer

    waiting = [Optimizer]
    while waiting:
        kind = waiting.pop()
        if modules.is_made(vars(kind).get("step")):
            return True
        waiting += kind.__subclasses__()
    return False


class UpdateWatch:
    """Finds updates inside compiled code, where no optimizer's hook runs, by the versions of the tensors they change.

    Tensors count the changes made to them in place. An optimizer with a state (moments, step counts) has made an update
    if its state has changed: fused kernels do not count their changes to parameters, and a script may clip or average
    parameters too. An optimizer without a state, such as plain SGD, has made an update if its parameters have changed.
    Changes count from the time at which the watch was made; optimizers are not kept alive.
    """

    def __init__(self, optimizers: Iterable[Any]) -> None:
        self._before: weakref.WeakKeyDictionary[Any, _Signature | None] = weakref.WeakKeyDictionary()
        for optimizer in optimizers:
            self.look(optimizer)

    def look(self, optimizer: Any) -> None:
        """Notes the current state of the optimizer; later changes count as an update."""
        self._before[optimizer] = _signature(optimizer)

    def updated(self, optimizers: Iterable[Any]) -> list[Any]:
        """The optimizers that have made an update since the last look at them."""
        return [optimizer for optimizer in optimizers if self._has_updated(optimizer)]

    def _has_updated(self, optimizer: Any) -> bool:
        before = self._before.get(optimizer)
        if before is None:
            return False
        self.look(optimizer)
        now = self._before[optimizer]
        if now is None or before == now:
            return False
        (state_before, parameters_before), (state, parameters) = before, now
        return state != state_before if state else parameters != parameters_before


def _signature(optimizer: Any) -> _Signature | None:
    """The versions of some state and parameters; None if the optimizer is not built like those of torch."""
    try:
        with no_torch_function():  # tensor classes of the script's are not asked
            parameters = list(_some_parameters(optimizer.param_groups))
            state = [_version(value) for p in parameters for value in optimizer.state.get(p, {}).values()]
            return state, [version_of(p) for p in parameters]
    except Exception:
        return None


def _some_parameters(groups: list[dict[str, Any]]) -> Iterator[Any]:
    for group in groups if len(groups) <= _GROUPS else groups[: _GROUPS // 2] + groups[-_GROUPS // 2 :]:
        parameters = group["params"]
        for index in sorted({0, len(parameters) // 2, len(parameters) - 1}):
            if parameters and parameters[index].requires_grad:
                yield parameters[index]


def _version(value: Any) -> Any:
    return value if isinstance(value, (int, float)) else version_or_none(value)


def time_zero_grad(torch: Any, recorder: Recorder) -> Uninstall:
    """Times `zero_grad` of `torch.optim.Optimizer` and `torch.nn.Module`, which that of other classes calls in the end.

    The gradients of large models take a while to be zeroed or freed. That time is computing wherever the loop calls it:
    after the update, before the forward, or before the backward.
    """
    is_dynamo_compiling = torch.compiler.is_dynamo_compiling  # the recorder hears of any other

    def timed(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def zero_grad(self: Any, *args: Any, **kwargs: Any) -> Any:
            if is_dynamo_compiling():
                return original(self, *args, **kwargs)
            begun = True
            try:
                begun = recorder.emit(_ZERO_BEGIN)
                return original(self, *args, **kwargs)
            finally:
                if begun:
                    recorder.emit(_ZERO_END)

        return zero_grad

    owners = (torch.optim.Optimizer, torch.nn.Module)
    return all_of(*(replace(owner, "zero_grad", timed(vars(owner)["zero_grad"])) for owner in owners))
