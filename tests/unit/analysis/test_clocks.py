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


def test_ranks_of_a_node_share_one(tmp_path: Path) -> None:
    times: dict[int, Times] = {0: [(1, 9)], 1: [(1, 9)], 2: [(5, 9)], 3: [(5, 6)]}
    found = offsets(tmp_path, times, [0, -3, 0, -3], "abab")
    assert set(found) == {0, 1}
    # Narrower than between ranks 0 and 1 alone: rank 2 was issued at 5, rank 3 was through at 6.
    assert found[1] == ClockOffset(-3 * MS - 1500 * US, 2500 * US + US)


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
