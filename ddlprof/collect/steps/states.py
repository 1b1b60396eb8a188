"""The states of the training thread, and which of them has the time while several hold.

A state is a bit, and the thread is in the sum of those that hold; `open_step.py` says in which order they have the
time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

COMM = 1 << 0
"""It waits for collectives."""
H2D = 1 << 1
"""It copies to the device."""
DATA = 1 << 2
"""It waits for a batch."""
CHECKPOINT = 1 << 3
"""It saves a checkpoint."""
NO_GRAD_FORWARD = 1 << 4
"""It is in a forward without gradients."""
ZERO_GRAD = 1 << 5
"""It sets gradients to zero."""
TRAINING = 1 << 6
"""The step's first forward or backward has begun, and the step has not ended."""

Booking = Callable[[int], None]
"""Books nanoseconds."""


def by_state(in_order: Sequence[tuple[int, Booking]], otherwise: Booking) -> list[Booking]:
    """For each sum of states the booking of the first of them in this order; `otherwise` is for none of them."""
    sums = range(sum(state for state, _ in in_order) + 1)
    return [next((booking for state, booking in in_order if held & state), otherwise) for held in sums]
