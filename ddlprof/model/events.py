"""The events that hooks report to the recorder.

An event is a plain tuple `(kind, time, a, b, c)`, because building anything richer in the training thread would cost
more than the rest of the hook. `time` is an integer of nanoseconds on one monotonic clock or, before it is resolved, a
device event. `FIELDS` says what `a`, `b` and `c` are in each kind; they are None where it names nothing.

Hooks know nothing of steps or classes; `ddlprof.collect.steps.attribution` turns events into step rows.
"""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import Any, NamedTuple

Event = tuple[int, Any, Any, Any, Any]


class Kind(IntEnum):
    """The kinds of events. BEGIN and END of a kind nest properly, as they come from one thread."""

    DATA_BEGIN = 0
    """The loop asks a loader for a batch. `loader`: the id of the iteration."""
    DATA_END = 1
    """The batch is there. `delivery`: (fetch share, prep share, cpu, asked, storage, blocked), a callable that returns
    these later, or None if not known. The shares are fractions of the wait; the rest is the cost of making the batch,
    as in `ddlprof.collect.loader.fetch_meter.Fetch`. `samples`: those in the batch, 0 if there is no batch (an iterator
    was made, the data ended), None if unknown."""
    EPOCH = 2
    """A loader was asked for an iterator."""
    FORWARD_BEGIN = 3
    """An outermost module or compiled function is called. `grad`: whether gradients are enabled (for compiled functions
    also recorded: an object whose truth is known at the end). `training_mode`: None for a compiled function. `samples`:
    those in its input, a callable that returns them later, or None; without gradients
    `ddlprof.collect.steps.no_grad.NoGradCalls`."""
    FORWARD_END = 4
    BACKWARD_BEGIN = 5
    """A backward begins. `unseen`: True if the call itself was not seen, but something that contains a backward:
    compiled code, or a CUDA graph."""
    BACKWARD_END = 6
    OPTIMIZER_BEGIN = 7
    """An outermost optimizer step begins. `optimizer`: its id."""
    OPTIMIZER_END = 8
    """An outermost optimizer step ends. `skipped`: whether the update was skipped, or a callable that returns this
    later. `first_seen`: a `FirstSeen` the first time an optimizer is seen, else None."""
    H2D_BEGIN = 9
    """A host-to-device copy that the compute stream executes or waits for. `size`: bytes."""
    H2D_END = 10
    COMM_BEGIN = 11
    """The training thread (device: the compute stream) begins to wait for communication."""
    COMM_END = 12
    """The wait for communication ends. `bounded`: False if the wait ended otherwise than with the last collective;
    True, or a device event (resolved: a time) of its end, if it did. `waited`: the collectives waited for, None for
    all. `reached`: streams whose collectives were waited for and that were not yet reported."""
    CHECKPOINT_BEGIN = 13
    CHECKPOINT_END = 14
    COLLECTIVE = 15
    """A collective was issued. `record`: the mutable record of `ddlprof.collect.hooks.collectives`."""
    COMPILE = 16
    """torch.compile compiled something since the last step."""
    TRACED = 17
    """This step carries extra instrumentation (FLOP count, profiler window)."""
    GAP = 18
    """The time between forward and update in which no hook ran, reported just before the event that ends it.
    `gap`: the `ddlprof.collect.steps.loop.Gap`."""
    ITERATION = 19
    """A batch is asked for, or a forward with gradients begins, while no optimizer has stepped since the last backward.
    In loops whose optimizer is never seen this ends a step. `begun_by`: the `IterationStart`."""
    UNSEEN = 20
    """torch counted collectives since the last update or round that the hooks did not see. `count`: how many."""

    ZERO_GRAD_BEGIN = 21
    """Gradients are about to be zeroed or freed, by an optimizer or a module."""
    ZERO_GRAD_END = 22
    LOST = 23
    """Events were lost here, as the helper thread did not take them. `updates`: the number of updates among them, by
    optimizer id; under None that of the rounds that ended a step. `marks`: the updates and rounds of any kind since the
    start of the run. `first_seen`: the `FirstSeen` of the optimizers that were seen for the first time, by id. Reported
    by the recorder itself."""


FIELDS: dict[Kind, tuple[str, ...]] = {
    Kind.DATA_BEGIN: ("loader",),
    Kind.DATA_END: ("loader", "delivery", "samples"),
    Kind.EPOCH: ("loader",),
    Kind.FORWARD_BEGIN: ("grad", "training_mode", "samples"),
    Kind.FORWARD_END: ("grad",),
    Kind.BACKWARD_BEGIN: ("unseen",),
    Kind.OPTIMIZER_BEGIN: ("optimizer",),
    Kind.OPTIMIZER_END: ("optimizer", "skipped", "first_seen"),
    Kind.H2D_BEGIN: ("size",),
    Kind.COMM_END: ("bounded", "waited", "reached"),
    Kind.CHECKPOINT_END: ("written",),
    Kind.COLLECTIVE: ("record",),
    Kind.GAP: ("gap",),
    Kind.ITERATION: ("begun_by",),
    Kind.UNSEEN: ("count",),
    Kind.LOST: ("updates", "marks", "first_seen"),
}
"""The payload of each kind in the order in which hooks give it to `emit`; the parameters of the handlers in
`ddlprof.collect.steps.attribution` have the same names."""


class FirstSeen(NamedTuple):
    """What is known of an optimizer at the end of its first update."""

    name: str
    """The name of its class."""
    parameters: int
    model: str | None = None
    """The class of the module that has most of them; None: not known."""
    alive: frozenset[int] | None = None
    """The ids of the optimizers that existed then; None: not known."""
    made_again: bool = False
    """Whether it has the parameters of the optimizer before it, whose momentum or moments are lost."""


class IterationStart(IntEnum):
    """What begins a round of a loop whose optimizer is not seen."""

    LOADER = 0
    """The next batch is asked for."""
    FORWARD = 1
    """The next forward with gradients begins."""


class Purpose(Enum):
    """The purpose of a forward without gradients."""

    TRAINING = 0
    """Its result is used in the training forward: a teacher, a reference model, a frozen encoder."""
    ROLLOUT = 1
    """The model that is trained acts or generates, for the training to learn from."""
    EVALUATION = 2
