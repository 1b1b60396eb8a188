"""The context that every hook gets: `install(context) -> uninstall`. `hooks.table` makes one for each session."""

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
from ddlprof.collect.seen_groups import SeenGroups


class Inspection:
    """Receives the models, losses and optimizers of the first `FIRST_STEPS` steps.

    This class ignores them; classes that inspect them derive from it.
    """

    def forward(self, module: Any, inputs: Any) -> None:
        """An outermost forward with gradients begins. `module` is None if it is not known.

        `inputs`: its positional arguments, followed by its keyword arguments.
        """

    def forward_over(self, made: Any) -> None:
        """Such a forward has ended and returns this; None if it raises an error."""

    def backward(self, roots: Any, nested: bool, kept: bool, created: bool = False) -> None:
        """A backward of the training thread begins.

        `nested`: it runs inside another backward, as with reentrant checkpointing; `kept`: its graph is kept;
        `created`: it makes a graph of the gradients.
        """

    def update(self, optimizer: Any) -> None:
        """An outermost update begins."""


@dataclass
class HookContext:
    """What the hooks of a session share. It outlives the hooks, which may be removed and installed again."""

    torch: Any
    recorder: Recorder
    accelerator: Accelerator | None
    """The kind of device; None if steps are timed on the host only."""
    inspection: Inspection
    later: Callable[[Callable[[], None]], None]
    """Makes the training thread call a function between two steps, when nothing is being compiled."""
    unmeasured: Callable[[str], None]
    """Called with a class of step time that cannot be measured."""
    on_process_group: Callable[[], None]
    """Called when the default process group has been created."""
    modules: OuterModules
    steps: OptimizerSteps
    streams: Streams
    captures: Captures
    groups: SeenGroups

    def adopt(self, accelerator: Accelerator) -> None:
        """Takes an accelerator that was found after the hooks were installed."""
        self.accelerator = self.streams.accelerator = self.captures.accelerator = accelerator


Install = Callable[[HookContext], Uninstall]
"""Installs one hook. It raises an error if this version of torch cannot be hooked; its data is then not measured."""
