"""Schedules of torch.distributed.pipelining: notes each that is made, with the place of this rank in its pipeline.

Schedules are found when they are made, so a step calls nothing more. What a schedule does in which order is complete
only once its class has made it, so the record is written after the next update.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any
from weakref import ref

from ddlprof.collect.hooks.context import HookContext
from ddlprof.collect.install import Uninstall, all_of, fail_open, replace
from ddlprof.collect.process.on_import import after_imports
from ddlprof.model.pipeline import BACKWARD, FORWARD, OF_INPUT, OF_WEIGHT, Action, PipelineSchedule, written

_MODULE = "torch.distributed.pipelining.schedules"
_BASES = ("PipelineScheduleSingle", "PipelineScheduleMulti")
"""The classes that all schedules derive from: those with one stage on a rank, and those with several."""
_KINDS = {
    "FORWARD": FORWARD, "FULL_BACKWARD": BACKWARD, "BACKWARD": BACKWARD, "BACKWARD_INPUT": OF_INPUT,
    "BACKWARD_WEIGHT": OF_WEIGHT, "WEIGHT": OF_WEIGHT,
}  # fmt: skip
"""The names of torch's kinds of actions; all others are communication."""
_MOST_NAMES = 40
_SEPARATORS = str.maketrans(",|*", "___")


def install(context: HookContext) -> Uninstall:
    """Hooks the constructors of schedules as soon as the script has imported them."""
    undo: list[Uninstall] = []

    def imported() -> None:
        try:
            kinds = [getattr(sys.modules[_MODULE], name) for name in _BASES]
            undo.extend(replace(kind, "__init__", _noted(kind.__init__, context)) for kind in kinds)
        except Exception as error:  # fail open: it would be an error of the script's import
            context.recorder.note("pipeline", f"schedules are not known: {type(error).__name__}: {error}")

    undo.append(after_imports({_MODULE: [imported]}))
    return lambda: all_of(*undo)()


def _noted(original: Callable[..., None], context: HookContext) -> Callable[..., None]:
    """The constructor of a base class, which the constructors of schedules call with the stages and their number."""

    def note(schedule: Any, stages: Any, micro_batches: int, loss: Any = None, **_: Any) -> None:
        if loss is None:  # an evaluation's: it has no backward
            return
        made, several = ref(schedule), isinstance(stages, list)
        parts = [ref(stage) for stage in (stages if several else [stages])]
        write = fail_open(lambda: _write(context, made, parts, several, int(micro_batches)), context.recorder)
        context.later(write)

    quiet_note = fail_open(lambda schedule, args, kwargs: note(schedule, *_in_order(*args, **kwargs)), context.recorder)

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        quiet_note(self, args, kwargs)

    return __init__


def _in_order(
    first: Any = None, n_microbatches: int = 0, loss_fn: Any = None, *_: Any, **others: Any
) -> tuple[Any, int, Any]:
    """The stage or stages, the number of micro-batches, and the loss, from the arguments of a constructor."""
    stages = others.get("stages", others.get("stage", first))
    return stages, n_microbatches, loss_fn


def _write(context: HookContext, made: Any, found: list[Any], several: bool, micro_batches: int) -> None:
    """Writes the record. A schedule with a single stage on a rank does not follow the order that it tells.

    `made` and `found` are weak references to the schedule and its stages.
    """
    schedule, stages = made(), [stage() for stage in found]
    if schedule is None or None in stages or not stages:
        return
    group = stages[0].group
    dist = context.torch.distributed
    ranks = range(dist.get_world_size()) if group is None else dist.get_process_group_ranks(group)
    orders = (getattr(schedule, "pipeline_order", None) or {}) if several else {}
    order = orders.get(int(stages[0].group_rank), ())
    context.recorder.record(
        PipelineSchedule(
            schedule=type(schedule).__name__,
            stages=int(stages[0].num_stages),
            micro_batches=micro_batches,
            own=",".join(str(int(stage.stage_index)) for stage in stages),
            ranks=",".join(map(str, ranks)),
            order=written([action for each in order for action in _actions(each)]),
            parts="|".join(_parts(stage.submod) for stage in stages),
        )
    )


def _actions(action: Any) -> Iterator[Action]:
    """The work in an action of torch's; none in a pause or in communication, two in one that overlaps two."""
    if action is None:
        return
    if inner := getattr(action, "sub_actions", None):
        for each in inner:
            yield from _actions(each)
        return
    kind = _KINDS.get(getattr(action.computation_type, "name", ""))
    if kind is not None:
        yield Action(int(action.stage_index), kind, int(action.microbatch_index))


def _parts(module: Any) -> str:
    """The names of the modules in a stage, containers with the number of what they hold."""
    names = []
    for name, child in list(module.named_children())[:_MOST_NAMES]:
        text = str(name).translate(_SEPARATORS)
        with suppress(TypeError):  # it has no length, so it is no container
            text += f"*{len(child)}"
        names.append(text)
    return ",".join(names)
