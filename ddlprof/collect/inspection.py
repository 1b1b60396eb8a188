"""Inspects the first steps: the model and its operations, the device, and which modules are outermost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ddlprof.collect.core import LoopWatch
from ddlprof.collect.device import DeviceTiming
from ddlprof.collect.facts.model_inspector import ModelInspector
from ddlprof.collect.hooks.context import HookContext, Inspection
from ddlprof.collect.loader.amounts import BatchAmounts
from ddlprof.collect.recorder import FIRST_STEPS
from ddlprof.operators.graph_flops import source, tensors_of
from ddlprof.operators.parameters import own_parameters, parameters_of
from ddlprof.torch_private.engine import sequence_number
from ddlprof.writing.writer import FinishedStep

_MOST_NODES = 10_000
"""The most nodes of a graph that are looked at."""


class ModelInspection(Inspection):
    """Shows the first steps to `ModelInspector` and `DeviceTiming`, and finds losses that begin before any forward."""

    def __init__(
        self,
        probe: ModelInspector,
        device: DeviceTiming,
        loop: LoopWatch,
        recorded: Callable[[], int] | None,
        amounts: BatchAmounts,
    ) -> None:
        """`recorded`: see `engine.recorded_operations`."""
        self._probe = probe
        self._device = device
        self._loop = loop
        self._amounts = amounts
        self._recorded = recorded
        self._before = self._begun = 0
        """The operations that autograd had recorded when the last backward began, and the first forward after it."""
        self._saw_forward = False

    def forward(self, module: Any, inputs: Any) -> None:
        """See `Inspection`."""
        if not self._saw_forward and self._recorded is not None:
            self._begun = self._recorded()
        self._saw_forward = True
        if module is not None:
            self._device.look(own_parameters(module))
        self._probe.training_forward(module, inputs)
        self._amounts.forward(inputs)

    def forward_over(self, made: Any) -> None:
        """See `Inspection`."""
        self._probe.mark_graph(made)

    def backward(self, roots: Any, nested: bool, kept: bool, created: bool = False) -> None:
        """See `Inspection`."""
        self._device.look(roots if issubclass(type(roots), (list, tuple)) else [roots])
        self._probe.backward_begin(roots, nested, kept, created)
        if not nested and not self._loop.early:
            self._loop.early = self._begins_early(roots)

    def _begins_early(self, roots: Any) -> bool:
        """Whether the loss was computed from operations before the first forward after the last backward, if any."""
        saw_forward, self._saw_forward = self._saw_forward, False
        before, self._before = self._before, self._recorded() if self._recorded is not None else 0
        if not saw_forward:
            return self._before > before or self._recorded is None
        return self._begun > before and _reaches(roots, before, self._begun)

    def update(self, optimizer: Any) -> None:
        """See `Inspection`."""
        self._device.look(parameters_of(optimizer))
        self._probe.update_begin(optimizer)


def _reaches(roots: Any, since: int, until: int) -> bool:
    """Whether the graph of a loss has operations of this range of the order in which autograd has recorded them."""
    nodes: list[Any] = [source(root) for root in tensors_of(roots)]
    seen: set[Any] = set()
    while nodes and len(seen) < _MOST_NODES:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        number = sequence_number(node)
        if number is not None and since <= number < until:
            return True
        nodes.extend(producer for producer, _ in node.next_functions)
    return False


class ModuleSearch:
    """Decides, in the helper thread, when the search for outermost modules ends and when another one begins."""

    def __init__(self) -> None:
        self._until = FIRST_STEPS
        """The number of boundaries at which this search ends."""

    def step_ended(self, step: FinishedStep, context: HookContext) -> None:
        """Ends a search that is due, or begins another if no forward was seen: another model is trained then."""
        boundaries, modules = context.recorder.boundaries, context.modules
        if boundaries < self._until:
            return
        if modules.searching:
            context.later(modules.settle)
        elif step.row.microbatches and not step.saw_forward and not modules.stays:
            context.later(modules.search)
        else:
            return
        self._until = boundaries + FIRST_STEPS
