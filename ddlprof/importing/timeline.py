"""What a timeline gives, of a device or of the training thread: the steps with their classes, and the collectives."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ddlprof.importing.intervals import IntArray
from ddlprof.importing.messages import Message


@dataclass(frozen=True)
class Steps:
    """Columns of nanoseconds, a row for each step; None: not measured."""

    number: IntArray
    begin: IntArray
    end: IntArray
    compute: IntArray | None
    parts: tuple[IntArray, IntArray, IntArray] | None
    """Forward, backward and optimizer, which add up to `compute`."""
    data: IntArray | None
    h2d: IntArray | None
    comm: IntArray | None
    other: IntArray

    def __len__(self) -> int:
        return len(self.number)


@dataclass(frozen=True)
class Transfers:
    """The collectives in order; times in nanoseconds."""

    ready: IntArray
    end: IntArray
    need: IntArray
    """-1 where nothing waited for it."""
    exposed: IntArray
    message: NDArray[np.int32]
    """The index into `messages`, -1 where it is not known which collective it is."""
    messages: list[Message]
