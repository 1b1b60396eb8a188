"""The bubble of a pipeline: the part of a rank's waiting that the schedule itself makes.

With stages that took the mean of all, a rank would still wait for its neighbours, as long as `schedules` says: that is
the bubble. What it waits beyond that is because stages differ, or because data take time to get there. In a step the
bubble is at most what the rank waited, so the slowest stage of an uneven pipeline has less of it than the others.

A pipeline is known from the schedules that a script makes of torch.distributed.pipelining, or by its form: messages
that go up and down a chain of ranks, one each way for each micro-batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ddlprof.analysis.collectives import RankCollectives, is_message
from ddlprof.analysis.schedules import Orders, equal_waits, one_forward_one_backward
from ddlprof.model.pipeline import PipelineSchedule, numbers, read_order
from ddlprof.model.records import MISSING, NEVER, CollectiveShape

if TYPE_CHECKING:
    from ddlprof.store import IntArray, RankData, StepTable

_USUAL_FORWARD_SHARE = 1 / 3
"""The part of the forward in a forward and a backward, where it was not measured: a backward has twice the work."""
_NOT_TOLD = (
    "bubble and straggler are empty: the schedule of a pipeline is not known, or one of its ranks left no file, so "
    "waiting for a later stage is not told from the bubble"
)
_ANSWER_SHARE = 0.5
"""Of the work on a micro-batch, what a last stage does at least between a message and its answer."""
_DIGITS = 2
"""The forward's part is rounded to so many digits, so that equal pipelines are replayed once."""


@dataclass(frozen=True)
class Pipeline:
    """A pipeline of a job."""

    ranks: tuple[int, ...]
    """The job's ranks in it, in the order of the group."""
    schedule: str
    """The name of the schedule's class; empty: recognised by its form."""
    stages: int
    micro_batches: int
    orders: Orders | None
    """The actions of each of its ranks; None: not known."""
    own: tuple[tuple[int, ...], ...]
    """The stages of each of its ranks."""
    parts: tuple[tuple[tuple[str, ...], ...], ...] = ()
    """The names of the modules in each of these stages."""

    @property
    def virtual(self) -> int:
        """The most stages on one rank."""
        return max(map(len, self.own), default=1)


def find_pipelines(ranks: Sequence[RankData]) -> list[Pipeline]:
    """The pipelines of the ranks of an attempt."""
    by_rank = {rank.rank: rank for rank in ranks}
    of_group: dict[tuple[int, ...], dict[int, PipelineSchedule]] = {}
    for rank in ranks:
        if rank.pipelines and (group := _group(rank.pipelines[-1])):
            of_group.setdefault(group, {})[rank.rank] = rank.pipelines[-1]
    found = [_told(group, places) for group, places in of_group.items()]
    if not found and len(by_rank) > 1:
        found = list(_by_form(by_rank))
    return found


def _group(place: PipelineSchedule) -> tuple[int, ...]:
    try:
        return numbers(place.ranks)
    except ValueError:  # a damaged line
        return ()


def _told(group: tuple[int, ...], places: dict[int, PipelineSchedule]) -> Pipeline:
    """The pipeline that its ranks have told of; of a rank that has no file its actions are not known."""
    one = next(iter(places.values()))
    own: tuple[tuple[int, ...], ...] = ()
    orders: Orders | None = None
    try:
        if all(rank in places for rank in group):
            own = tuple(numbers(places[rank].own) for rank in group)
            orders = tuple(read_order(places[rank].order) for rank in group)
    except ValueError:  # a damaged line
        own, orders = (), None
    if orders is not None and not all(orders):  # an older torch, or too many actions
        orders = one_forward_one_backward(one.stages, one.micro_batches) if one.stages == len(group) else None
    parts = tuple(tuple(_names(stage) for stage in places[rank].parts.split("|")) for rank in group if rank in places)
    return Pipeline(group, one.schedule, one.stages, one.micro_batches, orders, own, parts if own else ())


def _names(stage: str) -> tuple[str, ...]:
    return tuple(name for name in stage.split(",") if name)


def _by_form(ranks: dict[int, RankData]) -> Iterator[Pipeline]:
    """Chains of ranks in which as many messages go up as down between neighbours, one for each backward pass.

    Ranks of a ring send one way only, and ranks that exchange tokens or halos send another number of messages. Where
    neighbours exchange as many messages as there are micro-batches, no end of the chain works on what it was sent
    before it answers.
    """
    sent = {number: _messages(rank) for number, rank in ranks.items()}
    batches = {number: _usual(rank.steps["microbatches"]) for number, rank in ranks.items()}
    near = {
        number: [
            other
            for other, count in to.items()
            if count == sent.get(other, {}).get(number) == batches[number] == batches[other] > 0
        ]
        for number, to in sent.items()
        if to
    }
    if any(len(near[number]) != len(sent[number]) for number in near):  # there are other messages, too
        return
    for first in sorted(number for number, others in near.items() if len(others) == 1):
        chain = _chain(first, near)
        if chain is not None and chain[-1] > first and any(_works_between(ranks[end]) for end in (first, chain[-1])):
            count = len(chain)
            orders = one_forward_one_backward(count, batches[first])
            yield Pipeline(chain, "", count, batches[first], orders, tuple((stage,) for stage in range(count)))


def _works_between(rank: RankData) -> bool:
    """Whether a rank works between a message and its answer, as the last stage of a pipeline does.

    That is between the k-th that it gets in a step and the k-th that it sends. True where the times are not known.
    """
    table = rank.collectives
    ops = np.array([shape.op for shape in table.shapes] or [""])[table.shape]
    sent, got = np.flatnonzero(ops == "send"), np.flatnonzero(np.isin(ops, ("recv", "recv_any_source")))
    counts = [np.bincount(table.row[of], minlength=len(rank.steps)) for of in (sent, got)]
    both = counts[0] == counts[1]
    sent, got = sent[both[table.row[sent]]], got[both[table.row[got]]]
    if not len(sent) or (table.end_us[got] == NEVER).any():
        return True
    rows = table.row[sent]
    worked, batches = _worked_ns(rank.steps)[rows], np.maximum(rank.steps["microbatches"][rows], 1)
    between_us = np.median(table.ready_us[sent].astype(np.int64) - table.end_us[got].astype(np.int64))
    return bool(1000 * between_us >= _ANSWER_SHARE * np.median(worked / batches))


def _chain(first: int, near: dict[int, list[int]]) -> tuple[int, ...] | None:
    """The ranks from one end to the other; None if they are no chain."""
    chain, before = [first], -1
    while ahead := [other for other in near.get(chain[-1], []) if other != before]:
        if len(ahead) > 1 or ahead[0] in chain:
            return None
        before = chain[-1]
        chain.append(ahead[0])
    return tuple(chain) if len(chain) > 1 else None


def _messages(rank: RankData) -> dict[int, int]:
    """The number of messages that a rank sends to each other in a usual step."""
    table = rank.collectives
    steps = np.bincount(table.row, minlength=1)
    usual = _usual(steps[steps > 0])
    of_usual = np.flatnonzero(steps[table.row] == usual) if usual else np.zeros(0, dtype=np.int64)
    if not len(of_usual):
        return {}
    last = table.row[of_usual[-1]]
    shapes = [table.shapes[number] for number in table.shape[table.row == last]]
    return Counter(shape.root for shape in shapes if shape.op == "send" and shape.root is not None)


def _usual(values: IntArray) -> int:
    return int(np.bincount(values[values >= 0]).argmax()) if (values >= 0).any() else 0


class Bubbles:
    """The bubbles of the ranks of an attempt."""

    def __init__(self, ranks: Sequence[RankData], has_messages: bool = True, expected: bool = False) -> None:
        """`has_messages`: whether ranks send each other any; without them there is no pipeline to look for.

        `expected`: whether the model is known to be divided into stages.
        """
        self.pipelines = find_pipelines(ranks) if has_messages else []
        self._missed = expected and has_messages and not self.pipelines
        self._of = {rank: pipeline for pipeline in self.pipelines for rank in pipeline.ranks}
        self._ranks = {rank.rank: rank for rank in ranks}
        self._members: dict[str, set[int]] = {}
        for rank in ranks if self.pipelines else ():
            for group in {shape.group for shape in rank.collectives.shapes}:
                self._members.setdefault(group, set()).add(rank.rank)
        self._ideal = {id(pipeline): self._ideal_ns(pipeline) for pipeline in self.pipelines}

    @property
    def may_be(self) -> bool:
        """Whether any rank may have a bubble."""
        return bool(self.pipelines) or self._missed

    @property
    def note(self) -> str | None:
        """A sentence on why a bubble is not told; None where there is none, or it is."""
        if self._missed or any(self._ideal[id(pipeline)] is None for pipeline in self.pipelines):
            return _NOT_TOLD
        return None

    def of_rank(self, rank: RankData, matched: RankCollectives) -> IntArray:
        """The bubble in each step in ns; MISSING where `comm` or the schedule is not known, 0 outside of a pipeline."""
        comm = rank.steps["comm_ns"]
        pipeline = self._of.get(rank.rank)
        if pipeline is None:
            return np.where((comm == MISSING) | self._missed, MISSING, 0)
        ideal = self._ideal[id(pipeline)]
        if ideal is None:
            return np.full(len(comm), MISSING, dtype=np.int64)
        steps, by_rank = ideal
        places = np.clip(np.searchsorted(steps, rank.steps["step"]), 0, max(len(steps) - 1, 0))
        may_be = by_rank[pipeline.ranks.index(rank.rank)][places] if len(steps) else np.zeros(len(comm), dtype=np.int64)
        waited = self._waited_ns(rank, matched, pipeline)
        known = comm != MISSING
        if rank.untold is not None:
            known &= ~rank.untold | (comm == 0)
        return np.where(known, np.minimum(np.minimum(may_be, waited), comm), MISSING)

    def _ideal_ns(self, pipeline: Pipeline) -> tuple[IntArray, list[IntArray]] | None:
        """The numbers of steps, and for each rank how long it would wait in them if all stages took the mean."""
        tables = [self._ranks[rank].steps for rank in pipeline.ranks if rank in self._ranks]
        if pipeline.orders is None or len(tables) < len(pipeline.ranks):
            return None
        waits = equal_waits(pipeline.orders, round(_forward_share(tables), _DIGITS))
        if waits is None:
            return None
        numbers_of = np.concatenate([table["step"] for table in tables])
        worked = np.concatenate(
            [
                _worked_ns(table) / max(pipeline.micro_batches * len(own), 1)
                for table, own in zip(tables, pipeline.own, strict=True)
            ]
        )
        steps, index = np.unique(numbers_of[worked >= 0], return_inverse=True)
        mean_ns = np.bincount(index, weights=worked[worked >= 0]) / np.maximum(np.bincount(index), 1)
        return steps, [np.asarray(wait * mean_ns).astype(np.int64) for wait in waits]

    def _waited_ns(self, rank: RankData, matched: RankCollectives, pipeline: Pipeline) -> IntArray:
        """What the rank waited in each step for other stages: in messages, and in collectives together with them."""
        table = matched.table
        exposed = np.where(table.exposed_us == NEVER, 0, table.exposed_us)
        of_messages = np.array([self._is_message(shape, pipeline) for shape in table.shapes] or [False])[table.shape]
        of_others = np.array([self._is_shared(shape, pipeline, rank.rank) for shape in table.shapes] or [False])
        waited = np.maximum(exposed - np.maximum(matched.transfer_us, 0), 0)
        in_all = np.where(of_messages, exposed, np.where(of_others[table.shape], waited, 0))
        return 1000 * np.bincount(table.row, weights=in_all, minlength=len(rank.steps)).astype(np.int64)

    def _is_message(self, shape: CollectiveShape, pipeline: Pipeline) -> bool:
        return is_message(shape.op) and shape.root in pipeline.ranks

    def _is_shared(self, shape: CollectiveShape, pipeline: Pipeline, own: int) -> bool:
        others = self._members.get(shape.group, set()) - {own}
        return not is_message(shape.op) and any(other in pipeline.ranks for other in others)


def _worked_ns(table: StepTable) -> IntArray:
    """Forward and backward in each step; all computing where they were not told apart. Negative: not measured."""
    forward, backward = table["compute_forward_ns"], table["compute_backward_ns"]
    return np.where((forward == MISSING) | (backward == MISSING), table["compute_ns"], forward + backward)


def _forward_share(tables: Sequence[StepTable]) -> float:
    forward = backward = 0
    for table in tables:
        known = (table["compute_forward_ns"] != MISSING) & (table["compute_backward_ns"] != MISSING)
        forward += int(table["compute_forward_ns"][known].sum())
        backward += int(table["compute_backward_ns"][known].sum())
    return forward / (forward + backward) if forward + backward else _USUAL_FORWARD_SHARE
