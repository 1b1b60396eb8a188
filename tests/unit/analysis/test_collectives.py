"""Transfer and wait of matched collectives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ddlprof.analysis.collectives import bus_factor, can_split, match_collectives
from ddlprof.model.records import MISSING, NEVER, CollectiveShape, CollectiveTimes, StepRow
from ddlprof.store import RankData, load_run
from tests.golden.runs import SHAPES, ddp_step, header, step, with_collectives, write_rank

Times = list[tuple[int, int]]
"""Ready and end of each collective, in microseconds."""


def ranks_of(
    tmp_path: Path, times: list[Times], op: str = "allreduce", nodes: str = "aaaa", world: int | None = None
) -> list[RankData]:
    """One step of each rank with collectives of one group."""
    for rank, pairs in enumerate(times):
        shapes = [CollectiveShape("0", op, 1000, world or len(times))] * len(pairs)
        rows = [with_collectives(step(0), (0,))]
        records = [CollectiveTimes(ready, end, NEVER, NEVER) for ready, end in pairs]
        write_rank(tmp_path, header(rank, world or len(times), node=nodes[rank]), rows, shapes, records)
    return load_run(tmp_path).ranks


def test_the_last_to_arrive_does_not_wait(tmp_path: Path) -> None:
    one, two = match_collectives(ranks_of(tmp_path, [[(100, 500)], [(400, 500)]]))
    assert one.duration_us.tolist() == [400]
    assert two.duration_us.tolist() == [100]
    assert one.transfer_us.tolist() == two.transfer_us.tolist() == [100]
    assert (one.late.tolist(), one.last.tolist()) == ([True], [False])
    assert (two.late.tolist(), two.last.tolist()) == ([True], [True])


def test_waits_of_queued_collectives_are_counted_once(tmp_path: Path) -> None:
    # All three are issued at once on rank 0, and move one after the other once rank 1 has come.
    one, two = match_collectives(
        ranks_of(tmp_path, [[(0, 400), (0, 500), (0, 600)], [(300, 400), (300, 500), (300, 600)]])
    )
    assert one.start_us.tolist() == [0, 400, 500]
    assert one.duration_us.tolist() == [400, 100, 100]
    assert two.duration_us.tolist() == [100, 100, 100]
    assert (one.duration_us - one.transfer_us).tolist() == [300, 0, 0]


def test_nobody_is_late_where_all_had_issued_it_before_the_one_before_was_over(tmp_path: Path) -> None:
    # The second collective ends earlier on rank 0, as a ring over links that are not alike does.
    one, two = match_collectives(ranks_of(tmp_path, [[(0, 100), (50, 150)], [(0, 120), (60, 210)]]))
    assert one.transfer_us.tolist() == [100, 50]
    assert two.transfer_us.tolist() == [100, 90]
    assert not one.late[1]
    assert not two.late[1]


def test_a_rank_is_late_if_its_queue_stood_still(tmp_path: Path) -> None:
    one, two = match_collectives(ranks_of(tmp_path, [[(0, 100), (50, 250)], [(0, 100), (200, 250)]]))
    assert one.transfer_us.tolist() == two.transfer_us.tolist() == [100, 50]
    assert one.late.tolist() == [False, True]
    assert two.last.tolist() == [False, True]


def test_the_queue_goes_on_across_steps(tmp_path: Path) -> None:
    rows: list[StepRow] = [with_collectives(step(n), (n,)) for n in range(2)]  # steps of 10 ms
    times = [CollectiveTimes(9_000, 12_000, NEVER, NEVER), CollectiveTimes(500, 3_000, NEVER, NEVER)]
    write_rank(tmp_path, header(), rows, [CollectiveShape("0", "allreduce", 8, 1)], times)
    (rank,) = match_collectives(load_run(tmp_path).ranks)
    assert rank.start_us.tolist() == [9_000, 2_000]
    assert rank.duration_us.tolist() == [3_000, 1_000]


def test_clocks_need_not_agree(tmp_path: Path) -> None:
    agreeing = match_collectives(ranks_of(tmp_path / "a", [[(100, 500)], [(400, 500)]]))
    shifted = match_collectives(ranks_of(tmp_path / "b", [[(100, 500)], [(900_400, 900_500)]]))
    for one, two in zip(agreeing, shifted, strict=True):
        assert one.transfer_us.tolist() == two.transfer_us.tolist()


@pytest.mark.parametrize("op", ["broadcast", "reduce", "gather", "scatter", "send"])
def test_rooted_operations_are_not_split(tmp_path: Path, op: str) -> None:
    one, two = match_collectives(ranks_of(tmp_path, [[(100, 500)], [(400, 500)]], op))
    assert one.matched.all()
    assert one.transfer_us.tolist() == two.transfer_us.tolist() == [MISSING]
    assert not one.late.any()


def test_what_a_rank_lacks_is_not_split(tmp_path: Path) -> None:
    one, two = match_collectives(ranks_of(tmp_path, [[(100, 500), (600, 700)], [(400, 500)]]))
    assert one.transfer_us.tolist() == [100, MISSING]
    assert one.matched.tolist() == [True, False]
    assert two.matched.tolist() == [True]


def test_what_differs_between_ranks_is_not_matched(tmp_path: Path) -> None:
    ranks_of(tmp_path, [[(100, 500)], [(400, 500)]])
    rows = [with_collectives(step(0), (0,))]
    write_rank(tmp_path, header(1, 2), rows, [CollectiveShape("0", "allreduce", 999, 2)],
               [CollectiveTimes(400, 500, NEVER, NEVER)])  # fmt: skip
    one, _ = match_collectives(load_run(tmp_path).ranks)
    assert one.transfer_us.tolist() == [MISSING]


def test_without_an_end_there_is_no_duration(tmp_path: Path) -> None:
    one, two = match_collectives(ranks_of(tmp_path, [[(100, NEVER), (200, 500)], [(400, 450), (450, 500)]]))
    assert one.duration_us.tolist() == [MISSING, 300]
    assert one.transfer_us.tolist() == two.transfer_us.tolist() == [MISSING, 50]


def test_jitter_is_not_lateness(tmp_path: Path) -> None:
    one, _ = match_collectives(ranks_of(tmp_path, [[(100, 540)], [(140, 540)]]))
    assert one.transfer_us.tolist() == [400]
    assert not one.late.any()


@pytest.mark.parametrize(
    ("nodes", "world", "scope"), [("aa", 2, "intra"), ("ab", 2, "inter"), ("aa", 4, ""), ("ab", 4, "inter")]
)
def test_scope_is_known_only_if_all_ranks_are(tmp_path: Path, nodes: str, world: int, scope: str) -> None:
    ranks = ranks_of(tmp_path, [[(1, 2)], [(1, 2)]], nodes=nodes, world=world)
    assert match_collectives(ranks)[0].scopes == [scope]


def test_ranks_of_the_golden_steps(tmp_path: Path) -> None:
    for rank in (0, 1):
        made = [ddp_step(rank, n) for n in range(3)]
        write_rank(tmp_path, header(rank, 2), [r for r, _ in made], SHAPES, [t for _, ts in made for t in ts])
    one, two = match_collectives(load_run(tmp_path).ranks)
    assert np.array_equal(one.transfer_us, [6000, 4000] * 3)
    assert np.array_equal(two.duration_us, [6000, 4000] * 3)
    assert np.array_equal(one.duration_us, [26000, 18000] * 3)


def test_a_rank_without_collectives(tmp_path: Path) -> None:
    write_rank(tmp_path, header(), [step(0)])
    (rank,) = match_collectives(load_run(tmp_path).ranks)
    assert len(rank.duration_us) == 0
    assert rank.scopes == []


@pytest.mark.parametrize(
    ("op", "split", "factor"),
    [
        ("allreduce", True, 1.5),
        ("allreduce_coalesced", True, 1.5),
        ("_allgather_base_", True, 0.75),
        ("all_gather_into_tensor", True, 0.75),
        ("reduce_scatter_tensor", True, 0.75),
        ("alltoall_base", True, 0.75),
        ("barrier", True, 0.0),
        ("broadcast", False, 1.0),
        ("gather", False, 1.0),
        ("reduce", False, 1.0),
    ],
)
def test_kinds_of_operations(op: str, split: bool, factor: float) -> None:
    assert can_split(op) is split
    assert bus_factor(op, 4) == factor
    assert bus_factor(op, 1) == 0
