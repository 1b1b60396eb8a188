"""Transfer and wait of operations in which ranks do different work, from times worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from ddlprof.analysis.arrivals import awaited_ranks, split_by_arrival
from ddlprof.analysis.clocks import clock_offsets
from ddlprof.analysis.collectives import RankCollectives, match_collectives
from ddlprof.analysis.stragglers import CommParts, split_comm
from ddlprof.model.records import MISSING, ClockReading, CollectiveShape, CollectiveTimes
from ddlprof.store import RankData, load_run
from tests.golden.runs import MS, header, step, with_collectives, write_rank

Times = Sequence[tuple[int, int]]
"""Ready and end of each collective, in microseconds of a step that begins for all ranks at the same moment."""


def write(
    directory: Path, shapes: Sequence[Sequence[CollectiveShape]], times: Sequence[Times], nodes: str = "aaaa",
    readings: Sequence[ClockReading] = (), clock_ns: Sequence[int] = (0, 0, 0, 0), comm_ms: float = 0,
) -> list[RankData]:  # fmt: skip
    """One step of 100 ms of each rank; all that its collectives take is exposed. `clock_ns`: how far the rank's
    monotonic clock is ahead."""
    for rank, (own, pairs) in enumerate(zip(shapes, times, strict=True)):
        head = header(rank, len(times), node=nodes[rank])
        head = replace(head, origin_ns=head.origin_ns + clock_ns[rank])
        row = step(0, 100 - comm_ms, 0, 0, comm_ms, start_ms=1000 - rank)  # rank r began r ms after rank 0
        groups = dict.fromkeys(shape.group for shape in own)
        records = [CollectiveTimes(ready, end, ready, end - ready) for ready, end in pairs]
        write_rank(directory, head, [with_collectives(row, tuple(0 for _ in groups))], own, records,
                   readings if rank == 0 else ())  # fmt: skip
    return load_run(directory).ranks


def split(ranks: list[RankData]) -> list[RankCollectives]:
    matching = match_collectives(ranks)
    return list(split_by_arrival(ranks, matching, clock_offsets(ranks, matching)))


def parts(ranks: list[RankData]) -> list[CommParts]:
    return [split_comm(r, matched, lambda shape: None) for r, matched in zip(ranks, split(ranks), strict=True)]


def rooted(op: str, ranks: int = 2, root: int = 0, size: int = 1000) -> list[list[CollectiveShape]]:
    return [[CollectiveShape("0", op, size, ranks, root)]] * ranks


def message(count: int = 1) -> list[list[CollectiveShape]]:
    """From rank 0 to rank 1."""
    return [
        [CollectiveShape("0:0>1", "send", 1000, 2, 1)] * count,
        [CollectiveShape("0:0>1", "recv", 1000, 2, 0)] * count,
    ]


@pytest.mark.parametrize("op", ["broadcast", "scatter"])
def test_a_receiver_waits_for_the_root(tmp_path: Path, op: str) -> None:
    root, receiver = split(write(tmp_path, rooted(op), [[(4000, 5000)], [(1000, 5500)]]))
    assert receiver.transfer_us.tolist() == [1500]
    assert root.transfer_us.tolist() == [1000]
    assert (root.late.tolist(), root.last.tolist()) == ([True], [True])
    assert (receiver.late.tolist(), receiver.last.tolist()) == ([True], [False])
    assert root.doubt_us.tolist() == receiver.doubt_us.tolist() == [0]


def test_the_root_waits_for_a_late_receiver_if_it_is_still_at_it(tmp_path: Path) -> None:
    root, receiver = split(write(tmp_path / "rendezvous", rooted("broadcast"), [[(1000, 5000)], [(4000, 5500)]]))
    assert root.transfer_us.tolist() == [1000]
    assert receiver.transfer_us.tolist() == [1500]
    assert receiver.last.tolist() == [True]
    root, receiver = split(write(tmp_path / "buffered", rooted("broadcast"), [[(1000, 1200)], [(4000, 5500)]]))
    assert root.transfer_us.tolist() == [200]
    assert receiver.transfer_us.tolist() == [1500]
    assert not receiver.late.any()  # nobody waited for it


def test_the_root_of_a_gather_waits_for_the_last(tmp_path: Path) -> None:
    times: list[Times] = [[(1000, 6000)], [(2000, 2500)], [(5000, 6000)]]
    root, early, late = split(write(tmp_path, rooted("gather", 3), times))
    assert [c.transfer_us.tolist() for c in (root, early, late)] == [[1000], [500], [1000]]
    assert late.last.tolist() == [True]


def test_messages_are_matched_by_their_way(tmp_path: Path) -> None:
    sender, receiver = split(write(tmp_path, message(2), [[(3000, 4000), (9000, 9100)], [(0, 4500), (5000, 9500)]]))
    assert sender.matched.all()
    assert sender.transfer_us.tolist() == [1000, 100]
    assert receiver.transfer_us.tolist() == [1500, 500]
    assert receiver.scopes == ["intra"]


def test_an_all_to_all_of_different_sizes_waits_for_everybody(tmp_path: Path) -> None:
    shapes = [[CollectiveShape("0", "alltoall_base", size, 2)] for size in (1000, 9000)]
    one, two = split(write(tmp_path, shapes, [[(1000, 5000)], [(4000, 4600)]]))
    assert [one.transfer_us.tolist(), two.transfer_us.tolist()] == [[1000], [600]]


def test_what_came_from_anybody_is_told_from_nothing(tmp_path: Path) -> None:
    shapes = [[CollectiveShape("0:0>1", "send", 8, 2, 1)], [CollectiveShape("0:any>1", "recv_any_source", 8, 2)]]
    found = parts(write(tmp_path, shapes, [[(0, 50_000)], [(0, 50_000)]], comm_ms=50))
    assert found[1].straggler.tolist() == [MISSING]
    assert list(found[1].unsplit_us) == ["a receive from anybody does not say whose message it waits for"]


def test_the_monotonic_clock_of_a_machine_is_one(tmp_path: Path) -> None:
    ranks = write(tmp_path, rooted("broadcast"), [[(4000, 5000)], [(1000, 5500)]])
    ranks[1].header = replace(ranks[1].header, origin_unix_ns=ranks[1].header.origin_unix_ns + 300 * MS)
    assert split(ranks)[1].transfer_us.tolist() == [1500]  # the unix clock was set between the two starts
    ranks[1].header = replace(ranks[1].header, origin_ns=7 * 10**15)  # another time namespace
    assert split(ranks)[1].transfer_us.tolist() == [4500]  # the unix clock is what is left


def test_between_machines_the_clocks_readings_tell(tmp_path: Path) -> None:
    ahead = 3 * 10**12
    reading = ClockReading(1, ahead - 100_000, ahead + 100_000)
    ranks = write(tmp_path, rooted("broadcast"), [[(4000, 5000)], [(1000, 5500)]], "ab", [reading], (0, ahead))
    receiver = split(ranks)[1]
    assert receiver.transfer_us.tolist() == pytest.approx([1500], abs=2)
    assert 100 <= receiver.doubt_us[0] < 150  # of which little is drift


def test_without_a_bound_between_clocks_there_are_no_parts(tmp_path: Path) -> None:
    ranks = write(tmp_path, rooted("broadcast"), [[(4000, 50_000)], [(1000, 50_000)]], "ab", comm_ms=40)
    assert split(ranks)[1].transfer_us.tolist() == [MISSING]
    found = parts(ranks)[1]
    assert found.straggler.tolist() == [MISSING]
    assert list(found.unsplit_us) == ["nothing tells how far the clocks of its machines are apart"]


@pytest.mark.parametrize(("bound_ms", "told"), [(4, True), (6, False)])
def test_a_bound_above_a_twentieth_of_the_step_leaves_the_parts_empty(
    tmp_path: Path, bound_ms: int, told: bool
) -> None:
    reading = ClockReading(1, -bound_ms * MS, bound_ms * MS)
    times: list[Times] = [[(20_000, 50_000)], [(10_000, 50_000)]]
    found = parts(write(tmp_path, rooted("broadcast"), times, "ab", [reading], comm_ms=40))[1]
    assert (found.straggler != MISSING).tolist() == [told]
    assert ("the clocks of the machines are not known well enough" in found.unsplit_us) is not told


def test_a_rank_that_comes_late_for_its_transfer_is_no_straggler(tmp_path: Path) -> None:
    # The root's part is over at once, the receiver's takes 40 ms: the root waits for it in the all-reduce that follows.
    shapes = [[*rooted("broadcast")[0], CollectiveShape("0", "allreduce", 8, 2)]] * 2
    times: list[Times] = [[(0, 1000), (20_000, 70_000)], [(0, 40_000), (60_000, 70_000)]]
    ranks = write(tmp_path, shapes, times, comm_ms=50)
    root, receiver = split(ranks)
    assert root.transfer_us.tolist() == [1000, 10_000]
    assert root.excused_us.tolist() == [0, 39_000]  # it computed 1 ms less: so long it waits for a straggler
    assert receiver.transfer_us.tolist() == [40_000, 10_000]
    assert parts(ranks)[0].straggler.tolist() == [1 * MS]


@pytest.mark.parametrize(
    ("own", "root", "awaited"),
    [(0, 0, {1, 2, 4}), (1, 0, {0, 3, 5}), (3, 0, {1, 0}), (5, 0, {1, 0}), (4, 3, {3, 0, 2}), (2, 3, {4, 3})],
)
def test_in_a_broadcast_of_six_a_rank_waits_for_its_neighbours(own: int, root: int, awaited: set[int]) -> None:
    group = [10, 11, 12, 13, 14, 15]
    shape = CollectiveShape("0", "broadcast", 8, 6, 10 + root)
    assert {rank - 10 for rank in awaited_ranks(shape, 10 + own, group)} == awaited
