"""What every hook is given: `install(context) -> uninstall`. Made once a session, by `ddlprof.collect.hooks.table`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ddlprof.collect.accelerator.protocol import Accelerator
from ddlprof.collect.hooks.graphs import Captures
from ddlprof.collect.hooks.modules import OuterModules
from ddlprof.collect.hooks.optimizers import OptimizerSteps
from ddlprof.collect.hooks.streams import Streams
from ddlprof.collect.install import Uninstall
from ddlprof.collect.recorder import Recorder


class Inspection:
    """Is shown what is trained, and on what: called before the event, in the `FIRST_STEPS` only.

    This one looks at nothing; those that do derive from it.
    """

    def forward(self, module: Any, inputs: Any) -> None:
        """An outermost forward with gradients begins; None where the module is not known.

        `inputs`: its arguments, those by name behind the others.
        """

    def backward(self, roots: Any, nested: bool, kept: bool) -> None:
        """A backward of the training thread begins.

        `nested`: inside another one, as reentrant checkpointing runs them; `kept`: the graph is needed afterwards.
        """

    def update(self, optimizer: Any) -> None:
        """An outermost update begins."""


@dataclass(frozen=True)
class HookContext:
    """The surroundings of a session's hooks. What hooks share with each other outlives their going and coming again."""

    torch: Any
    recorder: Recorder
    accelerator: Accelerator | None
    """The kind of device; None where steps are timed on the training thread."""
    inspection: Inspection
    later: Callable[[Callable[[], None]], None]
    """Has some work of ours done between two steps of the training thread, when nothing is compiled."""
    unmeasured: Callable[[str], None]
    """Called with a class of the steps that cannot be measured."""
    on_process_group: Callable[[], None]
    """Called when there is a default group."""
    modules: OuterModules
    steps: OptimizerSteps
    streams: Streams
    captures: Captures


Install = Callable[[HookContext], Uninstall]
"""Raises where this torch cannot be hooked: what the hook would have seen is then not measured."""
