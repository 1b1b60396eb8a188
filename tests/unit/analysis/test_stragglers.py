"""The replay that takes exposed communication apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ddlprof.analysis.collectives import match_collectives
from ddlprof.analysis.stragglers import CommParts, SizeSweep, SizeSweeps, savings, split_comm
from ddlprof.model.records import MISSING, NEVER, Calibration, CollectiveShape, CollectiveTimes
from ddlprof.store import IntArray, load_run
from tests.golden.runs import MS, SHAPES, ddp_step, header, step, with_collectives, write_rank


def saved(
    ready: Sequence[int], end: Sequence[int], need: Sequence[int], exposed: Sequence[int], transfer: Sequence[int],
    group: list[str] | None = None,
) -> int:  # fmt: skip
    def one_step(values: Sequence[int]) -> IntArray:
        return np.array([values], dtype=np.int64)

    queues = group or ["0"] * len(ready)
    times = (one_step(ready), one_step(end), one_step(need), one_step(exposed), one_step(transfer))
    return max(int(savings(*times, queues)[0].sum()), 0)


def split(directory: Path) -> list[CommParts]:
    ranks = load_run(directory).ranks
    return [
        split_comm(rank, matched, lambda shape: None)
        for rank, matched in zip(ranks, match_collectives(ranks), strict=True)
    ]


def test_waiting_for_a_late_rank_is_saved() -> None:
    assert saved([10], [50], [30], [20], [5]) == 20  # punctual, it would end at 15, before it is needed
    assert saved([10], [50], [30], [20], [25]) == 15  # it would end at 35, 5 after it is needed


def test_a_punctual_collective_saves_nothing() -> None:
    assert saved([10, 20], [30, 50], [25, 25], [5, 20], [20, 20]) == 0


def test_what_is_saved_early_exposes_what_was_hidden_later() -> None:
    # The first wait of 20 goes, so what followed it comes 20 earlier: the second need at 45 instead of 65, when the
    # second collective, which nothing makes faster, still runs until 60.
    assert saved([10, 10], [50, 60], [30, 65], [20, 0], [20, 50], ["a", "b"]) == 20 - 15
    # One that was issued after the first wait moves along with it.
    assert saved([10, 55], [50, 60], [30, 65], [20, 0], [20, 5], ["a", "b"]) == 20


def test_groups_have_queues_of_their_own() -> None:
    ready, end, need, exposed, transfer = [0, 0], [40, 50], [45, 45], [0, 5], [40, 20]
    assert saved(ready, end, need, exposed, transfer, ["a", "a"]) == 0
    assert saved(ready, end, need, exposed, transfer, ["a", "b"]) == 5


def test_a_wait_that_began_before_the_issue_is_not_the_transfer() -> None:
    # A blocking call: 30 of exposed time, of which 10 passed before the collective was issued.
    assert saved([10], [30], [0], [30], [20]) == 0
    assert saved([10], [30], [0], [30], [5]) == 15


def test_parts_of_ddp_steps_add_up(tmp_path: Path) -> None:
    for rank in (0, 1):
        made = [ddp_step(rank, n) for n in range(4)]
        write_rank(tmp_path, header(rank, 2), [r for r, _ in made], SHAPES, [t for _, ts in made for t in ts])
    punctual_waits, late_waits = split(tmp_path)
    assert punctual_waits.straggler.tolist() == [20 * MS] * 4
    assert punctual_waits.interconnect.tolist() == [4 * MS] * 4
    assert late_waits.straggler.tolist() == [0] * 4
    assert late_waits.interconnect.tolist() == [4 * MS] * 4
    assert punctual_waits.network.tolist() == [0] * 4


def test_between_machines_only_the_straggler_is_told(tmp_path: Path) -> None:
    for rank, node in ((0, "a"), (1, "b")):
        made = [ddp_step(rank, n) for n in range(2)]
        head = header(rank, 2, node=node)
        write_rank(tmp_path, head, [r for r, _ in made], SHAPES, [t for _, ts in made for t in ts])
    parts = split(tmp_path)[0]
    assert parts.straggler.tolist() == [20 * MS] * 2
    assert parts.interconnect.tolist() == parts.network.tolist() == [MISSING] * 2


def test_steps_that_another_rank_lacks_have_no_parts(tmp_path: Path) -> None:
    for rank, steps in ((0, 4), (1, 2)):
        made = [ddp_step(rank, n) for n in range(steps)]
        write_rank(tmp_path, header(rank, 2), [r for r, _ in made], SHAPES, [t for _, ts in made for t in ts])
    parts = split(tmp_path)[0]
    assert parts.straggler.tolist() == [20 * MS, 20 * MS, MISSING, MISSING]
    assert parts.interconnect.tolist() == [4 * MS, 4 * MS, MISSING, MISSING]
    assert dict(parts.unsplit_us) == {"some ranks have no record of the same collective": 2 * 24_000}


@pytest.mark.parametrize(("broadcast_ms", "told"), [(1, True), (5, False)])
def test_a_little_that_cannot_be_split_stays_with_the_interconnect(
    tmp_path: Path, broadcast_ms: int, told: bool
) -> None:
    shapes = [*SHAPES, CollectiveShape("0", "broadcast", 8, 2)]
    for rank in (0, 1):
        row, times = ddp_step(rank, 1)
        extra = broadcast_ms * MS
        row = replace(row, step_ns=row.step_ns + extra, comm_ns=(row.comm_ns or 0) + extra)
        times.append(CollectiveTimes(92_000, 92_000 + broadcast_ms * 1000, 92_000, broadcast_ms * 1000))
        write_rank(tmp_path, header(rank, 2), [with_collectives(row, (0,))], shapes, times)
    parts = split(tmp_path)[0]
    assert parts.straggler.tolist() == ([20 * MS] if told else [MISSING])
    assert parts.interconnect.tolist() == ([5 * MS] if told else [MISSING])
    assert list(parts.unsplit_us) == ["the root of broadcast is not recorded, and ranks do different work in it"]


def test_a_single_process_waits_for_nobody(tmp_path: Path) -> None:
    write_rank(tmp_path, header(), [step(0), step(1, comm_ms=2), step(2, comm_ms=None, other_ms=2)])
    (parts,) = split(tmp_path)
    assert parts.interconnect.tolist() == [0, 2 * MS, MISSING]
    assert parts.network.tolist() == parts.straggler.tolist() == [0, 0, MISSING]


def test_no_exposed_time_has_parts_of_zero_and_unknown_has_none(tmp_path: Path) -> None:
    for rank in (0, 1):
        write_rank(tmp_path, header(rank, 2), [step(0), step(1, comm_ms=3), step(2, comm_ms=None)])
    parts = split(tmp_path)[0]
    assert parts.straggler.tolist() == [0, MISSING, MISSING]
    assert parts.interconnect.tolist() == [0, MISSING, MISSING]


def test_a_collective_whose_end_is_unknown_saves_nothing(tmp_path: Path) -> None:
    for rank, ready in ((0, 100), (1, 900)):
        row = with_collectives(step(0, comm_ms=1, data_ms=0), (0,))
        write_rank(tmp_path, header(rank, 2), [row], SHAPES[:1], [CollectiveTimes(ready, NEVER, ready, 1000)])
    parts = split(tmp_path)[0]
    assert parts.straggler.tolist() == [MISSING]
    assert dict(parts.unsplit_us) == {"the end of some collectives is not known": 1000}


RUNGS = [Calibration(2, 1000, 100_000), Calibration(2, 11_000, 200_000), Calibration(2, 21_000, 400_000)]


def all_reduce(size: int, ranks: int = 2, op: str = "allreduce") -> CollectiveShape:
    return CollectiveShape("0", op, size, ranks)


@pytest.mark.parametrize(
    ("size", "us"), [(1000, 100), (6000, 150), (11_000, 200), (21_000, 400), (31_000, 600), (10, 100)]
)
def test_between_and_beyond_the_rungs(size: int, us: float) -> None:
    assert SizeSweep(RUNGS).transfer_us(all_reduce(size)) == pytest.approx(us)


def test_more_ranks_need_more_rounds_and_move_more() -> None:
    # 4 ranks: 6 rounds for 2, and 2 * 3/4 of the bytes for 2 * 1/2
    assert SizeSweep(RUNGS).transfer_us(all_reduce(11_000, ranks=4)) == pytest.approx(100 * 3 + 100 * 1.5)


def test_a_gather_is_half_an_all_reduce() -> None:
    assert SizeSweep(RUNGS).transfer_us(all_reduce(11_000, op="allgather_base")) == pytest.approx(100)


def test_a_slower_smaller_rung_is_noise() -> None:
    noisy = [Calibration(2, 1000, 100_000), Calibration(2, 11_000, 50_000)]
    assert SizeSweep(noisy).transfer_us(all_reduce(1000)) == pytest.approx(50)


def test_a_single_rung() -> None:
    assert SizeSweep(RUNGS[:1]).transfer_us(all_reduce(9_000_000)) == pytest.approx(100)


def test_an_operation_with_a_ladder_of_its_own_needs_no_scaling() -> None:
    own = Calibration(2, 11_000, 700_000, op="reducescatter")
    ladders = SizeSweeps([*RUNGS, own])
    assert ladders.transfer_us(all_reduce(11_000)) == pytest.approx(200)
    assert ladders.transfer_us(all_reduce(11_000, op="reduce_scatter_base")) == pytest.approx(700)
    assert ladders.transfer_us(all_reduce(11_000, op="alltoall_base")) == pytest.approx(100)


def test_without_a_ladder_of_all_reduces_others_are_not_told() -> None:
    ladders = SizeSweeps([Calibration(2, 1024, 20_000, "allgather")])
    assert ladders.transfer_us(CollectiveShape("0", "broadcast", 1024, 2)) is None
    assert ladders.transfer_us(CollectiveShape("0", "allgather", 1024, 2)) is not None


def test_a_size_that_was_timed_twice() -> None:
    twice = [*RUNGS, *RUNGS, Calibration(2, 21_000, 500_000)]
    assert SizeSweep(twice).transfer_us(all_reduce(31_000)) == pytest.approx(600)


@pytest.mark.parametrize("ranks", [0, 1])
def test_rungs_of_nobody_are_damaged(ranks: int) -> None:
    nobody = Calibration(ranks, 1000, 1)
    assert SizeSweeps([nobody]).transfer_us(all_reduce(1000)) is None
    assert SizeSweeps([nobody, *RUNGS]).transfer_us(all_reduce(1000)) == pytest.approx(100)
