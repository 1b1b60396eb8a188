"""What the links of a run achieved."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddlprof.analysis.links import AchievedLink, achieved_links
from ddlprof.analysis.run import analyse
from ddlprof.model.records import Calibration, CollectiveShape, CollectiveTimes
from ddlprof.store import load_run
from tests.golden.runs import header, step, with_collectives, write_rank

LARGE = 4_000_000


def links_of(
    directory: Path,
    nodes: str = "ab",
    size: int = LARGE,
    op: str = "allreduce",
    ladders: dict[int, list[Calibration]] | None = None,
) -> dict[str, AchievedLink]:
    """Of a run of 40 steps with one collective each: rank 1 issues it a millisecond later, and it ends 4 ms after."""
    shape = CollectiveShape("0", op, size, len(nodes))
    for rank, node in enumerate(nodes):
        rows = [with_collectives(step(number, comm_ms=5), (number,)) for number in range(40)]
        times = [CollectiveTimes(1000 + 1000 * (rank == 1), 6000, 2000, 4000)] * 40
        records = (ladders or {}).get(rank, [])
        write_rank(directory, header(rank, len(nodes), node=node), rows, [shape], times, records)
    (attempt,) = analyse(load_run(directory))
    return {link.what: link for link in achieved_links(attempt, "nccl")}


def test_between_machines_the_wait_for_a_late_rank_is_not_counted(tmp_path: Path) -> None:
    (link,) = links_of(tmp_path).values()
    assert link.what == "nccl_allreduce_inter_gb_s"
    assert link.value == pytest.approx(LARGE / 4e-3 / 1e9)  # bus factor of two ranks: 1
    assert "all-reduces of 4000000 bytes" in link.notes


def test_machines_with_fewer_ranks_are_not_mixed_in(tmp_path: Path) -> None:
    ladders = {0: [Calibration(3, 8_000_000, 8_000_000)], 3: [Calibration(2, 8_000_000, 1_000_000)]}
    link = links_of(tmp_path, nodes="aaabb", ladders=ladders)["gloo_allreduce_intra_gb_s"]
    assert link.value == pytest.approx(4 / 3)


def test_a_ladder_that_was_cut_short_shows_latency_only(tmp_path: Path) -> None:
    links = links_of(tmp_path, nodes="aa", ladders={0: [Calibration(2, 4096, 60_000)]})
    assert list(links) == ["gloo_allreduce_intra_latency_us"]
