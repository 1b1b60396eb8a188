"""Replays the schedule of a pipeline: how long each rank waits for its neighbours if stages take given times.

A forward of a stage needs that of the stage before it, a backward that of the stage behind it. Sending takes no time
here. A rank does its actions in the schedule's order and begins the next step at once, so what a rank waits in a step
is the time from the end of one step to that of the next, less its own work: with stages that take equally long this is
the bubble. Of p stages, one on each rank, with GPipe or 1F1B it is p - 1 forwards and backwards of a micro-batch;
interleaved stages, v on each rank, divide that by v (Narayanan et al., 2021).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from ddlprof.model.pipeline import BACKWARD, FORWARD, OF_WEIGHT, Action

Orders = tuple[tuple[Action, ...], ...]
"""The actions of each rank of a pipeline in order."""
_STEPS = 3
"""The steps that are replayed: from the second to the third, all ranks have found the pace of the slowest."""
_HALF = 0.5
"""The part of a backward that each of its halves takes, where a schedule has them apart."""


def one_forward_one_backward(stages: int, micro_batches: int) -> Orders:
    """The order of the schedule 1F1B with one stage on each rank; that of GPipe makes ranks wait as long."""
    orders = []
    for stage in range(stages):
        ahead = min(stages - 1 - stage, micro_batches)
        actions = [Action(stage, FORWARD, batch) for batch in range(ahead)]
        for batch in range(micro_batches - ahead):
            actions += [Action(stage, FORWARD, ahead + batch), Action(stage, BACKWARD, batch)]
        actions += [Action(stage, BACKWARD, batch) for batch in range(micro_batches - ahead, micro_batches)]
        orders.append(tuple(actions))
    return tuple(orders)


@lru_cache(maxsize=256)
def equal_waits(orders: Orders, forward_share: float) -> tuple[float, ...] | None:
    """How long each rank waits in a step if a forward and a backward of every stage take 1 together.

    `forward_share`: the forward's part of it. None if the orders cannot be carried out.
    """
    stages = 1 + max((action.stage for order in orders for action in order), default=-1)
    return waits(orders, [forward_share] * stages, [1 - forward_share] * stages)


def waits(orders: Orders, forward: Sequence[float], backward: Sequence[float]) -> tuple[float, ...] | None:
    """How long each rank waits in a step, in the unit of the times of a micro-batch by stage.

    None if the orders cannot be carried out: an action waits for one that nobody does, or that comes later.
    """
    last = len(forward) - 1
    ended: dict[tuple[int, str, int, int], float] = {}
    now, ends = [0.0] * len(orders), [[0.0] * len(orders) for _ in range(_STEPS)]
    places = [(0, 0)] * len(orders)
    moved = True
    while moved:
        moved = False
        for rank, order in enumerate(orders):
            step, place = places[rank]
            while step < _STEPS and order:
                action = order[place]
                needed = _needed(action, step, last)
                if needed is not None and needed not in ended:
                    break
                start = max(now[rank], ended[needed]) if needed is not None else now[rank]
                now[rank] = start + _takes(action, forward, backward)
                if action.kind != OF_WEIGHT:
                    kind = FORWARD if action.kind == FORWARD else BACKWARD
                    ended[action.stage, kind, action.micro_batch, step] = now[rank]
                moved = True
                place += 1
                if place == len(order):
                    ends[step][rank] = now[rank]
                    step, place = step + 1, 0
            places[rank] = step, place
    if any(step < _STEPS for step, _ in places):
        return None
    work = [sum(_takes(action, forward, backward) for action in order) for order in orders]
    return tuple(max(0.0, ends[-1][r] - ends[-2][r] - work[r]) for r in range(len(orders)))


def _needed(action: Action, step: int, last: int) -> tuple[int, str, int, int] | None:
    """What another stage must have done before: stage, kind, micro-batch and step; None for nothing."""
    if action.kind == FORWARD:
        return None if action.stage == 0 else (action.stage - 1, FORWARD, action.micro_batch, step)
    if action.kind == OF_WEIGHT or action.stage == last:
        return None
    return action.stage + 1, BACKWARD, action.micro_batch, step


def _takes(action: Action, forward: Sequence[float], backward: Sequence[float]) -> float:
    if action.kind == FORWARD:
        return forward[action.stage]
    return backward[action.stage] * (1 if action.kind == BACKWARD else _HALF)
