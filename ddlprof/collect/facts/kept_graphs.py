"""Whether autograd graphs of the first steps outlive their step, by marks in their nodes' metadata.

A node of a graph has a dictionary for whoever uses it (`torch.autograd.graph.Node.metadata`). What is put there is
freed with the node, so that a weak reference to it tells whether the graph is still kept, by whatever keeps it.
"""

from __future__ import annotations

import weakref
from typing import Any

from ddlprof.collect.loader.batch import arguments_tensors
from ddlprof.torch_private.engine import no_torch_function

_KEY = "ddlprof"
_MOST = 32
"""The most nodes that are marked in a step."""
_SURE_STEPS = 3
SURE_UPDATES = 8
"""After so many updates, no variable of a training loop holds what a first step has made."""


class _Mark:
    """Lives as long as the node that has it."""

    __slots__ = ("__weakref__",)


class KeptGraphs:
    """The graphs of the first steps: `mark` and `backward` in each of them, `look` after ever rarer updates."""

    def __init__(self) -> None:
        self.kept: int | None = None
        """The number of first steps whose graphs were alive at the last look; None: nobody looked."""
        self._marks: dict[int, list[weakref.ref[_Mark]]] = {}
        self._backwards: dict[int, list[bool]] = {}

    @property
    def retained(self) -> bool | None:
        """Whether the only backward of each step keeps its graph, which is let go later; None: not known."""
        if self.kept is None or len(self._backwards) < _SURE_STEPS:
            return None
        return not self.kept and all(each == [True] for each in self._backwards.values())

    def backward(self, keeps: bool, update: int) -> None:
        """A backward begins that is inside no other. `keeps`: whether it keeps its graph for another one."""
        self._backwards.setdefault(update, []).append(keeps)

    def mark(self, made: Any, update: int) -> None:
        """Marks the graphs of these tensors, or of those in containers. `update`: the number of updates so far."""
        marks = self._marks.setdefault(update, [])
        for tensor in arguments_tensors((made,))[: _MOST - len(marks)]:
            with no_torch_function():
                node = tensor.grad_fn
            if node is not None:
                mark = node.metadata.setdefault(_KEY, _Mark())
                marks.append(weakref.ref(mark))

    def look(self, updates: int) -> None:
        """Counts the steps whose graphs are alive."""
        if updates >= SURE_UPDATES and any(self._marks.values()):
            self.kept = sum(any(mark() is not None for mark in marks) for marks in self._marks.values())
