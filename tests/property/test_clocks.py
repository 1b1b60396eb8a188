"""Offsets between clocks: the true one is always inside the bound, and no class of a step depends on any of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ddlprof.analysis.clocks import ClockOffset, clock_offsets
from ddlprof.analysis.collectives import match_collectives
from ddlprof.analysis.run import analyse
from ddlprof.model.classes import TIMES
from ddlprof.model.records import CollectiveShape
from ddlprof.store import CollectiveTable, RankData, RunData, StepTable
from tests.golden.runs import header, step, with_collectives

US, MS = 1_000, 1_000_000
STEP_NS = 50 * MS


@dataclass(frozen=True)
class Job:
    """Ranks on nodes with clocks of their own, and a list of collectives, one a step: who takes part, and when."""

    node_of: list[int]
    offsets_ns: list[int]
    starts_ns: list[int]
    groups: dict[str, list[int]]
    collectives: list[tuple[str, str, list[int], int, list[int]]]
    """Group, operation, and in nanoseconds of the step: when each rank issues it, the transfer, and how much later
    than the end each rank sees it."""


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    nodes = draw(st.integers(2, 4))
    extra = draw(st.lists(st.integers(0, nodes - 1), max_size=3))
    node_of = [*range(nodes), *extra]
    ranks = len(node_of)
    # Either one group of all, or a chain in which each node only talks to the next.
    chain = {f"{n}": [n, n + 1] for n in range(nodes - 1)}
    groups = draw(st.sampled_from([{"all": list(range(ranks))}, chain]))
    far = st.integers(-5 * 10**9, 5 * 10**9)
    delay = st.integers(0, 20 * MS)
    names = [name for name in groups for _ in range(draw(st.integers(1, 3)))]
    return Job(
        node_of=node_of,
        offsets_ns=[draw(far) for _ in range(nodes)],
        starts_ns=[draw(st.integers(0, 10**9)) for _ in range(ranks)],
        groups=groups,
        collectives=[
            (
                name,
                draw(st.sampled_from(["allreduce", "_allgather_base_", "reduce_scatter_tensor", "barrier"])),
                [draw(delay) for _ in range(ranks)],
                draw(st.integers(0, 10 * MS)),
                [draw(st.integers(0, MS)) for _ in range(ranks)],
            )
            for name in names
        ],
    )


def simulate(job: Job) -> list[RankData]:
    """The records of the job: nanoseconds since each rank's own start, collectives in whole microseconds."""
    base = 10**9  # all ranks have started by then
    seqs = dict.fromkeys(job.groups, 0)
    columns: list[list[list[int]]] = [[] for _ in job.node_of]
    shapes = [CollectiveShape(name, op, 8, len(job.groups[name])) for name, op, *_ in job.collectives]
    for number, (name, _, issued, transfer, seen) in enumerate(job.collectives):
        members = job.groups[name]
        end = max(issued[rank] for rank in members) + transfer
        for rank in members:
            times = (issued[rank] // US, (end + seen[rank]) // US, issued[rank] // US, 0)
            columns[rank].append([number, number, seqs[name], *times])
        seqs[name] += 1
    result: list[RankData] = []
    for rank, node in enumerate(job.node_of):
        rows = []
        for number in range(len(job.collectives)):
            row = step(number, 50, 0, 0)
            rows.append(replace(row, start_ns=base + number * STEP_NS - job.starts_ns[rank], step_ns=STEP_NS))
        head = header(rank, len(job.node_of), node=f"{node}")
        origin = head.origin_unix_ns - rank * MS + job.starts_ns[rank] + job.offsets_ns[node]
        table = CollectiveTable(shapes, *np.array(columns[rank], dtype=np.int64).reshape(-1, 7).T)
        steps = StepTable.from_rows([with_collectives(row, (0,)) for row in rows])
        head = replace(head, origin_unix_ns=origin, origin_ns=job.starts_ns[rank])
        result.append(RankData(head, steps, node, partial(_itself, table)))
    return result


def _itself(table: CollectiveTable) -> CollectiveTable:
    return table


def offsets_of(job: Job) -> dict[int, ClockOffset | None]:
    ranks = simulate(job)
    return clock_offsets(ranks, match_collectives(ranks))


@settings(deadline=None)
@given(jobs())
def test_the_true_offset_is_inside_the_bound(job: Job) -> None:
    offsets = offsets_of(job)
    assert offsets[0] == ClockOffset(0, 0)
    for node, found in offsets.items():
        assert found is not None
        assert abs(found.offset_ns - (job.offsets_ns[node] - job.offsets_ns[0])) <= found.bound_ns
        assert found.drift_ns == 0


@settings(deadline=None)
@given(jobs())
def test_the_bound_is_what_the_collectives_leave_open(job: Job) -> None:
    """No wider than the time between the last issue and the first end seen, on every link on the way, rounded."""
    width = max(
        transfer + max(issued) - min(issued) + max(seen) + 2 * US for _, _, issued, transfer, seen in job.collectives
    )
    for node, found in offsets_of(job).items():
        assert found is not None
        assert found.bound_ns <= node * width + node


@settings(deadline=None)
@given(jobs(), st.lists(st.integers(-(10**12), 10**12), min_size=4, max_size=4))
def test_a_shifted_clock_shifts_its_offset_only(job: Job, shifts: list[int]) -> None:
    shifted = replace(job, offsets_ns=[o + s for o, s in zip(job.offsets_ns, shifts, strict=False)])
    before, after = offsets_of(job), offsets_of(shifted)
    for node, found in before.items():
        other = after[node]
        assert found is not None
        assert other is not None
        assert other.offset_ns - found.offset_ns == shifts[node] - shifts[0]
        assert other.bound_ns == found.bound_ns


@settings(deadline=None, max_examples=40)
@given(jobs(), st.lists(st.integers(-(10**12), 10**12), min_size=4, max_size=4))
def test_no_class_depends_on_clocks(job: Job, shifts: list[int]) -> None:
    shifted = replace(job, offsets_ns=[o + s for o, s in zip(job.offsets_ns, shifts, strict=False)])
    (one,), (two,) = (analyse(RunData(("run",), None, simulate(j))) for j in (job, shifted))
    assert one.summary == two.summary
    for left, right in zip(one.ranks, two.ranks, strict=True):
        assert all(np.array_equal(left.times.times[name], right.times.times[name]) for name in TIMES)
