"""Transfer and wait of matched collectives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ddlprof.analysis.collectives import bus_factor, can_split, match_collectives
from ddlprof.model.records import MISSING, NEVER, CollectiveShape, CollectiveTimes
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


def test_what_differs_between_ranks_is_not_matched(tmp_path: Path) -> None:
    ranks_of(tmp_path, [[(100, 500)], [(400, 500)]])
    rows = [with_collectives(step(0), (0,))]
    write_rank(tmp_path, header(1, 2), rows, [CollectiveShape("0", "allreduce", 999, 2)],
               [CollectiveTimes(400, 500, NEVER, NEVER)])  # fmt: skip
    one, _ = match_collectives(load_run(tmp_path).ranks)
    assert one.transfer_us.tolist() == [MISSING]


def test_ranks_of_the_golden_steps(tmp_path: Path) -> None:
    for rank in (0, 1):
        made = [ddp_step(rank, n) for n in range(3)]
        write_rank(tmp_path, header(rank, 2), [r for r, _ in made], SHAPES, [t for _, ts in made for t in ts])
    one, two = match_collectives(load_run(tmp_path).ranks)
    assert np.array_equal(one.transfer_us, [6000, 4000] * 3)
    assert np.array_equal(two.duration_us, [6000, 4000] * 3)
    assert np.array_equal(one.duration_us, [26000, 18000] * 3)


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
