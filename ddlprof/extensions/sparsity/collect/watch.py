"""Counts zeros on some steps of a training. Hooks are put on its layers at the begin of such a step and removed after.

Between these steps only one hook on the optimizers is left. Forward hooks see inputs, hooks on outputs see their
gradients; no value is changed. Layers inside torch.compile get no hooks, which would cause another compilation.
"""

from __future__ import annotations

import json
import sys
import time
import weakref
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ddlprof.base.files import replace_whole
from ddlprof.base.real_process import getpid
from ddlprof.collect.drops import HOOK, Drops
from ddlprof.collect.install import Uninstall, removal
from ddlprof.collect.process.on_import import after_import
from ddlprof.extensions.sparsity.model import SparsityCounts, SparsityRequest

_BETWEEN_WRITES_S = 1.0
"""Seconds between writes. A script that is killed loses what was counted since the last one."""


class SparsityWatch:
    """Chooses the counted steps of one training. Nothing here raises into the training."""

    def __init__(self, request: SparsityRequest) -> None:
        self.request = request
        self.drops = Drops()
        self.counts = SparsityCounts()
        self._pid = getpid()
        self._parameters: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._counting: Any = None
        self._is_counting = False
        self._write_at = 0.0
        self._remove: Uninstall = lambda: None

    def begin(self) -> None:
        """Called right after the script's first `import torch`."""
        try:
            import torch
            from torch.optim.optimizer import register_optimizer_step_post_hook

            from ddlprof.collect.compiler import leave_to_python
            from ddlprof.extensions.sparsity.collect import counting  # noqa: F401 (so that it is marked, too)

            leave_to_python(torch)
            is_compiling = torch.compiler.is_compiling

            def after(optimizer: Any, args: Any, kwargs: Any) -> None:
                if not is_compiling():
                    self._update(optimizer, sys._getframe(1))

            self._remove = removal(register_optimizer_step_post_hook(after))
        except Exception as error:
            self.drops.add(HOOK, error)

    def _update(self, optimizer: Any, frame: Any) -> None:
        """Called after an update of an optimizer. Nested updates, and those of smaller optimizers, end no step.

        `frame`: the frame of the function around `step`.
        """
        try:
            if _is_inside(frame):
                return
            if optimizer not in self._parameters:
                groups = optimizer.param_groups
                self._parameters[optimizer] = sum(each.numel() for group in groups for each in group["params"])
            if self._parameters[optimizer] == max(self._parameters.values()):
                self._step_ended()
        except Exception as error:
            self.drops.add(HOOK, error)
            self._stop()

    def _step_ended(self) -> None:
        ended = self.counts.steps_seen
        self.counts.steps_seen += 1
        if self._is_counting:
            self._is_counting = False
            found = self._counting.end(ended)
            is_last = len(self.counts.steps) >= self.request.steps
            if found and (is_last or time.monotonic() >= self._write_at):
                self.counts.unseen = self._counting.layers.unseen(self.counts)
                self._write()
            if not found:
                self._counting.add_up()
                self._counting = None  # another model is trained now
        if len(self.counts.steps) >= self.request.steps:
            self._stop()
        elif ended % self.request.every == 0:
            self._begin_to_count()

    def _begin_to_count(self) -> None:
        if self._counting is None:
            from ddlprof.extensions.sparsity.collect.counting import Counting, Layers

            layers = Layers()
            self.counts.compiled = layers.compiled
            self._counting = Counting(self.counts, layers, self.drops)
        self._counting.begin()
        self._is_counting = True

    def _stop(self) -> None:
        """Removes all hooks."""
        self._remove()
        if self._counting is not None:
            self._counting.remove()
            self._is_counting = False

    def _write(self) -> None:
        if getpid() != self._pid:
            return
        if self._counting is not None:
            self._counting.add_up()
        drops = [
            f"{each.count} {each.one if each.count == 1 else each.many}: {each.reason}" for each in self.drops.take()
        ]
        self.counts.notes += drops
        replace_whole(Path(self.request.out), json.dumps(asdict(self.counts)))
        self._write_at = time.monotonic() + _BETWEEN_WRITES_S

    def finish(self) -> None:
        """Called at the end of the program."""
        try:
            self._stop()
            self._write()
        except Exception as error:
            self.drops.add(HOOK, error)


def _is_inside(frame: Any) -> bool:
    """Whether the function of `frame` is on the stack twice: torch wraps every `step` in the same code."""
    code = frame.f_code
    while (frame := frame.f_back) is not None:
        if frame.f_code is code:
            return True
    return False


def start(request: SparsityRequest) -> SparsityWatch:
    """Starts counting in this process."""
    watch = SparsityWatch(request)
    after_import("torch", watch.begin)
    return watch
