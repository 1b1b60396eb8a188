"""Inspects the first steps: the model and its operations, the device, and which modules are outermost."""

from __future__ import annotations

from typing import Any

from ddlprof.collect.device import DeviceTiming
from ddlprof.collect.facts.model_inspector import ModelInspector
from ddlprof.collect.hooks.context import HookContext, Inspection
from ddlprof.collect.loader.amounts import BatchAmounts
from ddlprof.collect.recorder import FIRST_STEPS
from ddlprof.operators.parameters import own_parameters, parameters_of
from ddlprof.writing.writer import FinishedStep

_SEARCHES = 5


class ModelInspection(Inspection):
    """Shows the first steps to `ModelInspector` and `DeviceTiming`."""

    def __init__(self, probe: ModelInspector, device: DeviceTiming, amounts: BatchAmounts) -> None:
        self._probe = probe
        self._device = device
        self._amounts = amounts

    def forward(self, module: Any, inputs: Any) -> None:
        """See `Inspection`."""
        if module is not None:
            self._device.look(own_parameters(module))
        self._probe.training_forward(module, inputs)
        self._amounts.forward(inputs)

    def backward(self, roots: Any, nested: bool, kept: bool) -> None:
        """See `Inspection`."""
        self._device.look(roots if issubclass(type(roots), (list, tuple)) else [roots])
        self._probe.backward_begin(roots, nested, kept)

    def update(self, optimizer: Any) -> None:
        """See `Inspection`."""
        self._device.look(parameters_of(optimizer))
        self._probe.update_begin(optimizer)


class ModuleSearch:
    """Decides, in the helper thread, when the search for outermost modules ends and when another one begins."""

    def __init__(self) -> None:
        self._searches = 1
        self._until = FIRST_STEPS
        """The number of boundaries at which this search ends."""

    def step_ended(self, step: FinishedStep, context: HookContext) -> None:
        """Ends a search that is due, or begins another if no forward was seen: another model is trained then."""
        boundaries, modules = context.recorder.boundaries, context.modules
        if boundaries < self._until:
            return
        if modules.searching:
            context.later(modules.settle)
        elif step.row.microbatches and not step.saw_forward and self._searches < _SEARCHES:
            self._searches += 1
            context.later(modules.search)
        else:
            return
        self._until = boundaries + FIRST_STEPS
