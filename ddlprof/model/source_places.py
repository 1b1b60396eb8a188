"""A place in the sources at which time goes to `other`, and what is known of it; the report turns that into words."""

from __future__ import annotations

from typing import NamedTuple

LIBRARY = "library"
"""Not a line of the user's: the function of an installed package that its training loop calls."""
FORWARD = "forward"
"""A forward pass goes on there that is not part of computing: without gradients, or of a module that is not timed."""
EVALUATION = "evaluation"
"""The same, in a step that evaluates."""
ROLLOUT = "rollout"
"""The same, of the model that is trained: it acts, or generates, for its training."""
CHECKPOINT = "checkpoint"
LOGGING = "logging"
RESULT = "result"
"""The line waits for a result of the device (`.item()`)."""
SLEEP = "sleep"
ENVIRONMENT = "environment"
"""An environment of reinforcement learning takes its step."""


class SourcePlace(NamedTuple):
    """A place as `file:line function`, and one of the words above; empty where nothing is known."""

    text: str
    what: str = ""
