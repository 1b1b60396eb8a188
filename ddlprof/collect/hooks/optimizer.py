"""Optimizer steps, by torch's own global hooks, and GradScaler.step, which may skip them."""

from __future__ import annotations

import functools
import sys
from typing import Any

from ddlprof.collect.hook_context import HookContext
from ddlprof.collect.hook_state.step_hooks import removal
from ddlprof.collect.install import Uninstall, all_of, replace
from ddlprof.collect.recorder import FIRST_STEPS
from ddlprof.model.events import Kind
from ddlprof.torch_private import modules
from ddlprof.torch_private.engine import graph_task

_BEGIN, _END = int(Kind.OPTIMIZER_BEGIN), int(Kind.OPTIMIZER_END)  # slow to look up in an enumeration


def exists() -> bool:
    """Whether an optimizer was ever made: torch then marks the `step` of its class."""
    from torch.optim import Optimizer

    waiting = [Optimizer]
    while waiting:
        kind = waiting.pop()
        if modules.is_made(vars(kind).get("step")):
            return True
        waiting += kind.__subclasses__()
    return False


def install(context: HookContext) -> Uninstall:
    """Steps of every `torch.optim.Optimizer`, and updates skipped by a gradient scaler."""
    from torch.amp.grad_scaler import GradScaler
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    torch, recorder, steps = context.torch, context.recorder, context.steps
    steps.begin_anew()
    is_compiling = torch.compiler.is_compiling
    is_dynamo_compiling = torch.compiler.is_dynamo_compiling  # the recorder hears of any other
    in_backward, running = graph_task(torch), steps.running

    # What is the same in most steps is here in one function: each call of another one takes as long as what it does.
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


def _found_inf(scaler: Any, optimizer: Any) -> Any:
    """A question for later: fused optimizers are called in any case and skip the update on the device."""
    found = tuple(modules.scaler_state(scaler, optimizer).get("found_inf_per_device", {}).values())

    def answer() -> bool:
        try:
            return any(bool(value.item()) for value in found)
        except RuntimeError:
            return False

    return answer
