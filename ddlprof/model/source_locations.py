"""A place in the sources at which time goes to `other`, and the kind of work there. The report words it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

from ddlprof.model.annotations import Shared, SharedAs

LIBRARY = "library"
"""Not a line of the user's, but the function of an installed package that its training loop calls."""
FORWARD = "forward"
"""A forward pass that does not count as computing: without gradients, or of a module that is not timed."""
EVALUATION = "evaluation"
"""Such a forward pass in a step that evaluates."""
ROLLOUT = "rollout"
"""Such a forward pass of the trained model itself, which acts or generates for its training."""
CHECKPOINT = "checkpoint"
LOGGING = "logging"
RESULT = "result"
"""The line waits for a result of the device (`.item()`)."""
SLEEP = "sleep"
ENVIRONMENT = "environment"
"""An environment of reinforcement learning makes a step."""
PLOT = "plot"
METRIC = "metric"
COPY = "copy"
"""The line copies objects or the states of a model."""
COLLECT = "collect"
"""The line calls the garbage collector."""
LOOP = "loop"
"""Of computing: the first line of a loop in the user's code, outside of the optimizer."""
UPDATE = "update"
"""Of computing: the first line of a loop in the user's code, in an optimizer."""


class SourceLocation(NamedTuple):
    """A place as `file:line function`, and one of the words above or of `ddlprof.model.issuers`; empty if the kind of
    work is not known."""

    text: str
    what: str = ""
    caller: str = ""
    """The line of the user's that led there from the training loop, where it is another one."""


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A place in the sources. Written once and referred to by number."""

    number: Shared[int]
    text: Annotated[str, SharedAs("place")]
    what: Annotated[str, SharedAs("work")] = ""
    caller: Annotated[str, SharedAs("place")] = ""
