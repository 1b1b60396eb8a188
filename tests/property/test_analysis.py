"""What holds for every communication pattern: conservation, no negative time, and no dependence on clocks or order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ddlprof.analysis.arrivals import split_by_arrival
from ddlprof.analysis.clocks import clock_offsets
from ddlprof.analysis.collectives import RankCollectives, match_collectives
from ddlprof.analysis.run import analyse
from ddlprof.analysis.stragglers import CommParts, saved_of_each_us, split_comm, transfer_us
from ddlprof.analysis.summary import MIN_SPLIT_SHARE
from ddlprof.model.classes import CLASSES, PARTS, TIMES
from ddlprof.model.records import MISSING, CollectiveShape, RankHeader, StepRow
from ddlprof.store import CollectiveTable, RankData, RunData, StepTable
from tests.golden.runs import header, step, with_collectives

US, MS = 1_000, 1_000_000


@dataclass(frozen=True)
class Job:
    """A synthetic job: for each step and rank, how long it computes before each of its collectives."""

    delays_us: list[list[list[int]]]
    transfers_us: list[int]
    groups: list[str]
    ops: list[str]
    needed_at_end: bool


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    ranks, steps, count = draw(st.integers(2, 4)), draw(st.integers(1, 5)), draw(st.integers(1, 5))
    delay = st.integers(0, 3000)
    return Job(
        delays_us=[[[draw(delay) for _ in range(count)] for _ in range(ranks)] for _ in range(steps)],
        transfers_us=[draw(st.integers(1, 2000)) for _ in range(count)],
        groups=[draw(st.sampled_from(["0", "1"])) for _ in range(count)],
        ops=[draw(st.sampled_from(["allreduce", "allreduce", "allreduce", "broadcast"])) for _ in range(count)],
        needed_at_end=draw(st.booleans()),
    )


def simulate(job: Job, shifts_us: list[int] | None = None) -> list[RankData]:
    """Runs the job: a group moves one collective at a time, when all ranks have issued it.

    Computation waits for all of them after the last delay, or for each right after its issue.
    """
    ranks, count = len(job.delays_us[0]), len(job.transfers_us)
    shifts = shifts_us or [0] * ranks
    now = [0] * ranks
    free = dict.fromkeys(job.groups, 0)
    rows: list[list[StepRow]] = [[] for _ in range(ranks)]
    columns: list[list[list[int]]] = [[] for _ in range(ranks)]
    for number, delays in enumerate(job.delays_us):
        start = list(now)
        ready = np.zeros((ranks, count), dtype=int)
        end = np.zeros(count, dtype=int)
        need, exposed = np.zeros((ranks, count), dtype=int), np.zeros((ranks, count), dtype=int)
        for i in range(count):
            for rank in range(ranks):
                now[rank] += delays[rank][i]
                ready[rank, i] = now[rank]
            end[i] = free[job.groups[i]] = max(ready[:, i].max(), free[job.groups[i]]) + job.transfers_us[i]
            waited_for = range(count) if job.needed_at_end and i == count - 1 else [] if job.needed_at_end else [i]
            for rank in range(ranks):
                need[rank, waited_for] = now[rank]
                for j in waited_for:
                    exposed[rank, j] = max(0, end[j] - now[rank])
                    now[rank] = max(now[rank], int(end[j]))
        for rank in range(ranks):
            comm, total = int(exposed[rank].sum()), now[rank] - start[rank]
            row = step(number, (total - comm) / 1000, 0, 0, comm / 1000, start_ms=(start[rank] + shifts[rank]) / 1000)
            rows[rank].append(with_collectives(with_parts(row, delays[rank][0]), (number * count,)))
            for i in range(count):
                times = (ready[rank, i], end[i], need[rank, i])
                columns[rank].append([number, i, *(int(t) - start[rank] for t in times), int(exposed[rank, i])])
    shapes = [
        CollectiveShape(g, op, 8 * (i + 1), ranks, i % ranks if op == "broadcast" else None)
        for i, (g, op) in enumerate(zip(job.groups, job.ops, strict=True))
    ]
    result: list[RankData] = []
    for rank in range(ranks):
        table = np.array(columns[rank], dtype=np.int64)
        seq = table[:, 0] * count + np.array([job.groups[:i].count(g) for i, g in enumerate(job.groups)])[table[:, 1]]
        collectives = CollectiveTable(shapes, table[:, 0], table[:, 1], seq, *table[:, 2:].T)
        steps = StepTable.from_rows(rows[rank])
        result.append(RankData(_header(rank, ranks, shifts[rank]), steps, 0, partial(_itself, collectives)))
    return result


def with_parts(row: StepRow, choice: int) -> StepRow:
    """With the parts of its computing, which of every fifth step are not known."""
    if choice % 5 == 4:
        return row
    compute = row.compute_ns or 0
    forward = compute * (choice % 7) // 10
    backward = (compute - forward) * (choice % 3) // 3
    optimizer = compute - forward - backward
    return replace(row, compute_forward_ns=forward, compute_backward_ns=backward, compute_optimizer_ns=optimizer)


def _header(rank: int, world_size: int, shift_us: int) -> RankHeader:
    """Of a rank that began `shift_us` before the first moment of the job."""
    plain = header(rank, world_size)
    shift_ns = rank * MS + shift_us * US
    return replace(plain, origin_ns=10**16 - shift_us * US, origin_unix_ns=plain.origin_unix_ns - shift_ns)


def split_of(ranks: list[RankData]) -> Sequence[RankCollectives]:
    matching = match_collectives(ranks)
    return split_by_arrival(ranks, matching, clock_offsets(ranks, matching))


def parts_of(ranks: list[RankData]) -> list[CommParts]:
    return [split_comm(r, matched, lambda shape: None) for r, matched in zip(ranks, split_of(ranks), strict=True)]


@settings(deadline=None)
@given(jobs())
def test_parts_are_not_negative_and_add_up_exactly(job: Job) -> None:
    ranks = simulate(job)
    for rank, parts in zip(ranks, parts_of(ranks), strict=True):
        known = parts.straggler != MISSING
        for part in (parts.interconnect, parts.network, parts.straggler, parts.bubble):
            assert ((part >= 0) | ~known).all()
            assert (part[~known] == MISSING).all()
        total = parts.interconnect + parts.network + parts.straggler + parts.bubble
        assert np.array_equal(total[known], rank.steps["comm_ns"][known])


@settings(deadline=None)
@given(jobs())
def test_the_replay_never_takes_longer_than_what_was_measured(job: Job) -> None:
    ranks = simulate(job)
    for rank, matched in zip(ranks, split_of(ranks), strict=True):
        each = saved_of_each_us(rank, matched, transfer_us(matched))
        saved = np.bincount(matched.table.row, each, minlength=len(rank.steps))
        assert (saved * US <= rank.steps["comm_ns"]).all()
        assert (matched.duration_us >= np.where(matched.transfer_us == MISSING, 0, matched.transfer_us)).all()


@settings(deadline=None)
@given(jobs(), st.lists(st.integers(0, 10**9), min_size=4, max_size=4))
def test_when_a_rank_began_changes_nothing(job: Job, shifts: list[int]) -> None:
    for one, two in zip(parts_of(simulate(job)), parts_of(simulate(job, shifts)), strict=True):
        assert np.array_equal(one.straggler, two.straggler)
        assert np.array_equal(one.interconnect, two.interconnect)


@settings(deadline=None)
@given(jobs(), st.randoms())
def test_the_order_of_ranks_changes_nothing(job: Job, random: Random) -> None:
    ranks = simulate(job)
    order = list(range(len(ranks)))
    random.shuffle(order)
    straight, shuffled = parts_of(ranks), parts_of([ranks[i] for i in order])
    for place, rank in enumerate(order):
        assert np.array_equal(shuffled[place].straggler, straight[rank].straggler)
        assert np.array_equal(shuffled[place].interconnect, straight[rank].interconnect)


@settings(deadline=None, max_examples=50)
@given(jobs(), st.randoms())
def test_the_order_of_ranks_changes_no_verdict(job: Job, random: Random) -> None:
    ranks = simulate(job)
    shuffled = list(ranks)
    random.shuffle(shuffled)
    (one,), (two,) = (analyse(RunData(("run",), None, list(order))) for order in (ranks, shuffled))
    assert one.late_rank == two.late_rank
    for name in TIMES:
        assert one.decisive.mean_ns(name) == two.decisive.mean_ns(name)


@settings(deadline=None)
@given(jobs())
def test_equal_ranks_have_no_straggler(job: Job) -> None:
    alike = replace(job, delays_us=[[delays[0]] * len(delays) for delays in job.delays_us])
    for parts in parts_of(simulate(alike)):
        assert (parts.straggler[parts.straggler != MISSING] == 0).all()


@settings(deadline=None)
@given(jobs())
def test_every_collective_is_told_and_the_last_to_come_waits_for_nobody(job: Job) -> None:
    ranks = simulate(job)
    last = np.zeros(sum(len(of.table) for of in split_of(ranks)) // len(ranks), dtype=int)
    for matched in split_of(ranks):
        assert (matched.transfer_us != MISSING).all()
        assert (matched.transfer_us >= 0).all()
        assert not matched.doubt_us.any()
        last += matched.last
        assert not (matched.last & ~matched.late).any()
    late = split_of(ranks)[0].late
    assert (last[late] >= 1).all()


@settings(deadline=None)
@given(jobs())
def test_the_last_rank_of_a_single_collective_has_no_straggler_time(job: Job) -> None:
    single = replace(job, delays_us=[[d[:1] for d in delays] for delays in job.delays_us],
                     transfers_us=job.transfers_us[:1], groups=["0"], ops=["allreduce"])  # fmt: skip
    ranks = simulate(single)
    parts = parts_of(ranks)
    for number, delays in enumerate(single.delays_us):
        arrivals = [int(r.steps["start_ns"][number]) // US + d[0] for r, d in zip(ranks, delays, strict=True)]
        last = max(arrivals)
        for arrival, part in zip(arrivals, parts, strict=True):
            assert part.straggler[number] == (last - arrival) * US


@settings(deadline=None, max_examples=50)
@given(jobs(), st.integers(0, 4))
def test_the_headline_adds_up(job: Job, steps_lost: int) -> None:
    ranks = simulate(job)
    last = ranks[-1]
    kept = max(len(last.steps) - steps_lost, 0)
    ranks[-1] = replace(last, steps=StepTable.from_rows(last.steps.rows()[:kept]), expand=partial(_first, last, kept))
    (attempt,) = analyse(RunData(("run",), None, ranks))
    mean = {name: attempt.summary.mean_ns(name) for name in TIMES}
    if mean["step"] is None:
        assert attempt.summary.steady_steps == 0
        return
    assert np.isclose(mean["step"], sum(mean[name] or 0 for name in CLASSES), rtol=1e-9)
    for whole in ("compute", "comm"):
        parts = [mean[name] for name in PARTS[whole]]
        assert min((part for part in parts if part is not None), default=0) >= 0
        if None not in parts:
            assert np.isclose(mean[whole] or 0, sum(part or 0 for part in parts), rtol=1e-9)
    computed = np.concatenate([rank.times.times["compute"][rank.times.steady] for rank in attempt.ranks])
    told = np.concatenate([rank.times.times["compute_forward"][rank.times.steady] for rank in attempt.ranks]) != MISSING
    covered = told.any() and computed[told].sum() >= MIN_SPLIT_SHARE * computed.sum()
    assert (mean["compute_forward"] is not None) == covered


def _itself(table: CollectiveTable) -> CollectiveTable:
    return table


def _first(rank: RankData, steps: int) -> CollectiveTable:
    table = rank.collectives
    kept = table.row < steps
    columns = (table.row, table.shape, table.seq, table.ready_us, table.end_us, table.need_us, table.exposed_us)
    return CollectiveTable(table.shapes, *(column[kept] for column in columns))
