"""Offsets between the clocks of machines, from times worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from ddlprof.analysis.clocks import ClockOffset, clock_offsets
from ddlprof.analysis.collectives import match_collectives
from ddlprof.model.records import NEVER, CollectiveShape, CollectiveTimes
from ddlprof.store import load_run
from tests.golden.runs import header, step, with_collectives, write_rank

MS, US = 1_000_000, 1_000
Times = Sequence[tuple[int, int]]
"""Issue and end of each collective in milliseconds since the start of its step; a step every 10 ms."""


def offsets(
    directory: Path, times: dict[int, Times], clocks_ms: Sequence[float], nodes: str, op: str = "allreduce",
    size: int = 8, groups: Sequence[str] | None = None, ranks: int | None = None,
) -> dict[int, ClockOffset | None]:  # fmt: skip
    """Every rank starts at the same moment; `clocks_ms` is by how much the unix clock of its machine is ahead."""
    for rank, pairs in times.items():
        head = header(rank, len(times), node=nodes[rank])
        origin = head.origin_unix_ns - rank * MS + round(clocks_ms[rank] * MS)
        group = groups[rank] if groups else "0"
        write_rank(
            directory,
            replace(head, origin_unix_ns=origin, origin_ns=5000),
            [with_collectives(step(n), (n,)) for n in range(len(pairs))],
            [CollectiveShape(group, op, size, ranks or len(times))],
            [CollectiveTimes(ready * 1000, end if end == NEVER else end * 1000, NEVER, 0) for ready, end in pairs],
        )
    loaded = load_run(directory).ranks
    return clock_offsets(loaded, match_collectives(loaded))


def test_the_middle_of_what_is_possible(tmp_path: Path) -> None:
    found = offsets(tmp_path, {0: [(1, 4)], 1: [(3, 4)]}, [0, 7], "ab")
    assert found[0] == ClockOffset(0, 0)
    # ready(b) <= end(a): offset >= 7 + 3 - 4 ms. ready(a) <= end(b): offset <= 7 + 4 - 1 ms. Ends count 1 us later.
    assert found[1] == ClockOffset(8 * MS, 2 * MS + US)


def test_every_collective_narrows_it(tmp_path: Path) -> None:
    found = offsets(tmp_path, {0: [(1, 4), (3, 4)], 1: [(3, 4), (1, 4)]}, [0, 0], "ab")
    assert found[1] == ClockOffset(0, 1 * MS + US)


def test_ranks_of_a_node_share_one(tmp_path: Path) -> None:
    times: dict[int, Times] = {0: [(1, 9)], 1: [(1, 9)], 2: [(5, 9)], 3: [(5, 6)]}
    found = offsets(tmp_path, times, [0, -3, 0, -3], "abab")
    assert set(found) == {0, 1}
    # Narrower than between ranks 0 and 1 alone: rank 2 was issued at 5, rank 3 was through at 6.
    assert found[1] == ClockOffset(-3 * MS - 1500 * US, 2500 * US + US)


def test_over_a_node_in_between(tmp_path: Path) -> None:
    # Rank 1 is in both groups; ranks 0 and 2 never meet.
    for rank, groups in enumerate((["g"], ["g", "h"], ["h"])):
        head = header(rank, 3, node="abc"[rank])
        head = replace(head, origin_unix_ns=head.origin_unix_ns - rank * MS + rank * 5 * MS)
        row = with_collectives(step(0), tuple(0 for _ in groups))
        times = [CollectiveTimes(1000, 3000, NEVER, 0) for _ in groups]
        write_rank(tmp_path, head, [row], [CollectiveShape(g, "allreduce", 8, 2) for g in groups], times)
    ranks = load_run(tmp_path).ranks
    found = clock_offsets(ranks, match_collectives(ranks))
    assert found == {
        0: ClockOffset(0, 0),
        1: ClockOffset(5 * MS, 2 * MS + US),
        2: ClockOffset(10 * MS, 4 * MS + 2 * US),
    }


@pytest.mark.parametrize("op", ["broadcast", "send", "alltoall_base", "reduce"])
def test_operations_that_do_not_wait_for_everybody_tell_nothing(tmp_path: Path, op: str) -> None:
    assert offsets(tmp_path, {0: [(1, 4)], 1: [(1, 4)]}, [0, 0], "ab", op) == {0: ClockOffset(0, 0), 1: None}


def test_what_is_empty_or_unmatched_or_without_an_end_tells_nothing(tmp_path: Path) -> None:
    nothing = {0: ClockOffset(0, 0), 1: None}
    times: dict[int, Times] = {0: [(1, 4)], 1: [(1, 4)]}
    assert offsets(tmp_path / "empty", times, [0, 0], "ab", size=0) == nothing
    assert offsets(tmp_path / "third", times, [0, 0], "ab", ranks=3) == nothing
    assert offsets(tmp_path / "apart", times, [0, 0], "ab", groups=["x", "y"]) == nothing
    assert offsets(tmp_path / "open", {0: [(1, NEVER)], 1: [(1, 4)]}, [0, 0], "ab") == nothing


def test_clocks_that_drift_apart_are_said_to(tmp_path: Path) -> None:
    # The second collective is seen by b 20 ms later than by a: no single offset explains both.
    found = offsets(tmp_path, {0: [(1, 2), (1, 2)], 1: [(1, 2), (21, 22)]}, [0, 0], "ab")
    offset = found[1]
    assert offset is not None
    assert offset.drift_ns == 18 * MS - 2 * US
    assert offset.offset_ns == pytest.approx(10 * MS, abs=2 * US)
    assert offset.bound_ns == pytest.approx(9 * MS, abs=2 * US)


def test_one_machine_has_one_clock(tmp_path: Path) -> None:
    assert offsets(tmp_path, {0: [(1, 4)], 1: [(3, 4)]}, [0, 7], "aa") == {0: ClockOffset(0, 0)}
