"""`torch.autograd.backward`, which `Tensor.backward` calls: one call is one micro-batch."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from typing import Any

from ddlprof.collect.hooks.context import HookContext
from ddlprof.collect.install import Uninstall, all_of, fail_open, replace
from ddlprof.collect.left_behind import Left
from ddlprof.collect.recorder import FIRST_STEPS, Recorder
from ddlprof.model.events import Kind

_BEGIN, _END = int(Kind.BACKWARD_BEGIN), int(Kind.BACKWARD_END)  # slow to look up in an enumeration


def install(context: HookContext) -> Uninstall:
    """Times each backward of the training thread; backwards of other threads are not part of a step."""
    torch, recorder, inspection = context.torch, context.recorder, context.inspection
    is_dynamo_compiling = torch.compiler.is_dynamo_compiling  # the recorder hears of any other
    original: Callable[..., None] = torch.autograd.backward
    nested = False

    def look(args: Any, kwargs: Any, inside: bool) -> None:
        roots = args[0] if args else kwargs["tensors"]
        inspection.backward(roots, inside, *_graph_is(*args[1:], **kwargs))

    quiet_look = fail_open(look, recorder)
    training_loss = recorder.training_loss

    def note_loss(args: Any, kwargs: Any) -> None:
        training_loss.note(args[0] if args else kwargs["tensors"], recorder.boundaries)

    quiet_note = fail_open(note_loss, recorder)

    @functools.wraps(original)
    def backward(*args: Any, **kwargs: Any) -> None:
        nonlocal nested
        if is_dynamo_compiling():
            return original(*args, **kwargs)
        outermost, begun = not nested or left.behind(sys._getframe()), True
        try:
            begun = not outermost or recorder.emit(_BEGIN)
            if not begun:
                return original(*args, **kwargs)
            nested = True
            if recorder.boundaries <= FIRST_STEPS:
                quiet_look(args, kwargs, not outermost)
            if outermost and recorder.boundaries >= training_loss.due:
                quiet_note(args, kwargs)
            return original(*args, **kwargs)
        finally:
            if begun:
                nested = not outermost
                try:
                    if recorder.after_backward is not None:
                        recorder.after_backward()
                finally:
                    if outermost:
                        recorder.emit(_END)

    left = Left(recorder, backward)

    return all_of(replace(torch.autograd, "backward", backward), _unscaled(torch, recorder))


def _unscaled(torch: Any, recorder: Recorder) -> Uninstall:
    """Remembers for each scaled loss the loss from which a `GradScaler` made it."""
    scaler = torch.amp.GradScaler
    original: Callable[..., Any] = scaler.scale

    def remember(scaled: Any, loss: Any) -> None:
        if scaled is not loss and issubclass(type(scaled), torch.Tensor):
            recorder.training_loss.scaled = weakref.ref(scaled), weakref.ref(loss)

    quiet_remember = fail_open(remember, recorder)

    @functools.wraps(original)
    def scale(self: Any, outputs: Any) -> Any:
        scaled = original(self, outputs)
        if not torch.compiler.is_compiling():
            quiet_remember(scaled, outputs)
        return scaled

    return replace(scaler, "scale", scale)


def _graph_is(
    grad_tensors: Any = None, retain_graph: Any = None, create_graph: Any = False, *_: Any, **others: Any
) -> tuple[bool, bool]:
    """Whether the arguments of `torch.autograd.backward` keep the graph, and whether they make one of the gradients."""
    return bool(create_graph if retain_graph is None else retain_graph), bool(create_graph)
