"""Updates under way: the outermost one of several inside each other, and the number of each optimizer."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable
from typing import Any

from ddlprof.collect.compiler.updates import Watch
from ddlprof.collect.install import fail_open, lose
from ddlprof.collect.recorder import FIRST_STEPS, Recorder
from ddlprof.model.events import Kind
from ddlprof.operators.parameters import parameters_of
from ddlprof.torch_private.compile import unique_graphs
from ddlprof.torch_private.engine import graph_task, no_torch_function

_BEGIN, _END, _COMPILE = int(Kind.OPTIMIZER_BEGIN), int(Kind.OPTIMIZER_END), int(Kind.COMPILE)  # slow to look up


def _nobody() -> None:
    """In place of a weak reference."""


class Steps:
    """The optimizers now in `step`, outermost first.

    A step that raised leaves its entry, found at the next one, which no step's frame has called. Neither optimizers
    nor frames are kept: a script that catches an error of `step` may count on its memory being freed.
    """

    def __init__(self, torch: Any, recorder: Recorder, look: Callable[[Any], None]) -> None:
        """`look`: called with an optimizer before its step is told, in the first steps."""
        self._graph_task = graph_task(torch)
        self._look = fail_open(look, recorder)
        self.recorder = recorder
        self.watch: Watch | None = None
        """While a compiled function is called: finds the updates inside it that no hook sees."""
        self.ids: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self.running: list[Callable[[], Any]] = []
        self.codes: set[Any] = set()
        self.inner_steps = 0
        self.compilations = 0
        self._counter = itertools.count()
        self.last: Callable[[], Any] = _nobody
        """The optimizer that stepped last, by a weak reference."""
        self.number = 0
        """That of this optimizer."""
        self.hears_of_compilations = False
        """Somebody sets `due` whenever torch.compile has compiled something."""
        self.due = True
        """Before the next step, see whether torch.compile has."""

    def begin_anew(self) -> None:
        """What happened without the hooks is not known."""
        self.running.clear()
        self.watch = None
        self.due = True
        self.compilations = unique_graphs()

    def _inside(self, frame: Any) -> bool:
        """Whether a step is under way that `frame` is called from."""
        if self.running and not _called_from(self.codes, frame):
            self.running.clear()
        return bool(self.running)

    def begin(self, optimizer: Any, frame: Any) -> None:
        """`frame`: of the function around `step`."""
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
            lose(self.recorder, Steps.begin, error)

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
        """The step of this optimizer is over; `skipped`: whether it has changed nothing, or what tells that later."""
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
            lose(self.recorder, Steps.end, error)

    def updated(self, optimizer: Any, frame: Any) -> None:
        """Compiled code, whose end `frame` belongs to, has made an update."""
        if self._inside(frame):
            self.inner_steps += 1
        elif self._begin():
            self._end(optimizer, False)
            self.last = _nobody  # the function around its `step` is not known yet

    def _end(self, optimizer: Any, skipped: Any) -> None:
        first_seen = None
        if optimizer not in self.ids:
            self.ids[optimizer] = next(self._counter)
            first_seen = (type(optimizer).__name__, _parameters(optimizer))
        self.last, self.number = weakref.ref(optimizer), self.ids[optimizer]
        self._emit(_END, self.number, skipped, first_seen)


def _called_from(codes: set[Any], frame: Any) -> bool:
    while (frame := frame.f_back) is not None:
        if frame.f_code in codes:
            return True
    return False


def _parameters(optimizer: Any) -> int:
    try:
        with no_torch_function():  # of parameters that are a tensor class of the script's
            return sum(p.numel() for p in parameters_of(optimizer))
    except Exception:  # duck-typed optimizers, which a gradient scaler takes too
        return 0
