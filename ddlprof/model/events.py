"""What the hooks tell the recorder, and nothing more.

An event is a plain tuple `(kind, time, a, b, c)`: building anything richer in the training thread
would cost more than the rest of the hook. `time` is an integer of nanoseconds on one monotonic clock,
or, before it is resolved, a device event. `a`, `b`, `c` depend on the kind and are None when unused.

Hooks know nothing of steps or classes; `ddlprof.collect.steps.attribution` turns events into step rows.
"""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import Any

Event = tuple[int, Any, Any, Any, Any]


class Kind(IntEnum):
    """The kinds of events. BEGIN and END of a kind nest properly, as they come from one thread."""

    DATA_BEGIN = 0
    """The loop asks a loader for a batch. a: loader iteration id (int)."""
    DATA_END = 1
    """The batch is there. a: loader iteration id; b: (fetch share, prep share, cpu, asked, storage), a callable
    that tells them later, or None where they are not known: the shares are fractions of the wait, the rest is
    what making the batch took, as in `ddlprof.collect.loader.fetch_meter.Fetch`; c: samples in the batch, 0 where
    there is no batch (an iterator was made, the data ended), None if unknown."""
    EPOCH = 2
    """A loader was asked for an iterator. a: loader iteration id."""
    FORWARD_BEGIN = 3
    """An outermost module or compiled function is called. a: gradients enabled (compiled: and recorded, an object whose
    truth is known at the end); b: the module is in training mode, None for a compiled function; c: samples in its
    input; without gradients `ddlprof.collect.steps.frozen.FrozenCalls`; a callable that tells them later, or None."""
    FORWARD_END = 4
    BACKWARD_BEGIN = 5
    """a: True where no call was seen, but something that holds a backward: compiled code, or a graph."""
    BACKWARD_END = 6
    OPTIMIZER_BEGIN = 7
    """An outermost optimizer step begins. a: optimizer id (int)."""
    OPTIMIZER_END = 8
    """a: optimizer id; b: the update was skipped (bool), or a callable that tells later; c: (name,
    number of parameters) the first time an optimizer is seen, else None."""
    H2D_BEGIN = 9
    """A host-to-device copy that the compute stream executes or waits for. a: bytes."""
    H2D_END = 10
    COMM_BEGIN = 11
    """The training thread (device: the compute stream) begins to wait for communication."""
    COMM_END = 12
    """a: False, or the wait ended with the last collective: True, or a device event (resolved: time) for its end; b:
    the collectives waited for, None for all; c: streams whose collectives were ever waited for and not told of yet."""
    CHECKPOINT_BEGIN = 13
    CHECKPOINT_END = 14
    COLLECTIVE = 15
    """A collective was issued. a: the mutable record of `ddlprof.collect.hooks.collectives`."""
    COMPILE = 16
    """torch.compile compiled something since the last step."""
    TRACED = 17
    """This step carries extra instrumentation (FLOP count, profiler window)."""
    GAP = 18
    """The time between forward and update in which no hook was, just before the event that ends it. a: the
    `ddlprof.collect.steps.loop.Gap`."""
    ROUND = 19
    """A batch is asked for, or a forward with gradients begins, and no optimizer has stepped since the last backward:
    where no optimizer ever does, this is the end of a step. a: the `Round`."""
    UNSEEN = 20
    """torch counted collectives since the last update or round and the hooks saw none. a: how many."""

    ZERO_GRAD_BEGIN = 21
    """Gradients are about to be zeroed or freed, by an optimizer or a module."""
    ZERO_GRAD_END = 22


class Round(IntEnum):
    """What begins a round of a loop whose optimizer is not seen."""

    LOADER = 0
    """The next batch is asked for."""
    FORWARD = 1
    """The next forward with gradients begins."""


class Purpose(Enum):
    """What a forward without gradients was for."""

    TRAINING = 0
    """The training forward uses what it made: a teacher, a reference model, a frozen encoder."""
    ROLLOUT = 1
    """The model that is trained acts or generates, for the training to learn from."""
    EVALUATION = 2
