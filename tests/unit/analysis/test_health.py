"""Counters that moved while a rank was late, among those that move anyway."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ddlprof.analysis.health import Moved, moved_counters
from ddlprof.analysis.run import analyse
from ddlprof.model.health import HealthReading
from ddlprof.model.records import CollectiveShape, CollectiveTimes
from ddlprof.store import load_run
from tests.golden.runs import MS, header, step, with_collectives, write_rank

STEPS, STEP_MS, SLOW_MS = 1200, 100, 60
SECONDS = STEPS * STEP_MS // 1000


def moved(
    folder: Path,
    is_late: Callable[[int], bool],
    counters: dict[int, Callable[[int], dict[str, int]]],
    nodes: str = "ab",
    collectives: bool = False,
) -> list[Moved]:
    """Two ranks of 120 seconds; the second computes longer in the late steps, the first waits for it.

    `counters`: of a rank, the values at each tenth second. `collectives`: each step has one.
    """
    shapes = [CollectiveShape("0", "allreduce", 1000, 2)] if collectives else []
    for rank in (0, 1):
        rows = []
        for number in range(STEPS):
            more = SLOW_MS if is_late(number) else 0
            own = 30 + (more if rank == 1 else 0)
            rows.append(step(number, own, 5, 5, STEP_MS - 10 - own, start_ms=number * STEP_MS))
        last: dict[str, int] = {}
        readings = []
        for second in range(0, SECONDS + 1, 10):
            now = counters.get(rank, lambda second: {})(second)
            changed = {name: value for name, value in now.items() if last.get(name) != value}
            readings += [HealthReading(second * 1000 * MS, name, "", value) for name, value in changed.items()]
            last = now
        if collectives:
            rows = [with_collectives(row, (number,)) for number, row in enumerate(rows)]
        times = [CollectiveTimes(1000, 2000, 1000, 1000)] * STEPS * len(shapes)
        write_rank(folder, header(rank, 2, node=nodes[rank]), rows, shapes, times, records=readings)
    return moved_counters(analyse(load_run(folder))[0].ranks, late=1)


def in_second_half(number: int) -> bool:
    return number >= STEPS // 2


def swapping(second: int) -> dict[str, int]:
    """Nothing before the second half, then 500 pages a second."""
    return {"swap_pages": 7 + 500 * max(0, second - SECONDS // 2), "tcp_retransmits": 30 * second}


def test_one_that_moves_all_the_time_on_no_other_machine(tmp_path: Path) -> None:
    def late_always(second: int) -> dict[str, int]:
        return {"steal_ms": 200 * second}

    (found,) = moved(tmp_path, lambda number: True, {1: late_always, 0: lambda second: {"steal_ms": second}})
    assert (found.counter.name, found.elsewhere) == ("steal_ms", True)
    assert moved(tmp_path / "both", lambda number: True, {1: late_always, 0: late_always}) == []
    assert moved(tmp_path / "untold", lambda number: True, {1: late_always}) == []


def test_ranks_of_one_machine_are_no_other_machine_but_have_other_devices(tmp_path: Path) -> None:
    def steals(second: int) -> dict[str, int]:
        return {"steal_ms": 200 * second, "pcie_replays": 10 * second}

    quiet = {1: steals, 0: lambda second: {"steal_ms": 0, "pcie_replays": 0}}
    (found,) = moved(tmp_path, lambda number: True, quiet, nodes="aa")
    assert found.counter.name == "pcie_replays"


def test_a_cable_explains_only_collectives_that_crossed_machines(tmp_path: Path) -> None:
    def errors(second: int) -> dict[str, int]:
        return {"tcp_retransmits": 500 * max(0, second - SECONDS // 2)}

    (found,) = moved(tmp_path / "two", in_second_half, {1: errors}, collectives=True)
    assert found.counter.name == "tcp_retransmits"
    assert moved(tmp_path / "one", in_second_half, {1: errors}, nodes="aa", collectives=True) == []
    assert moved(tmp_path / "unknown", in_second_half, {1: errors}) == []


def test_a_level_is_bad_as_long_as_it_is_not_zero(tmp_path: Path) -> None:
    def lanes(second: int) -> dict[str, int]:
        return {"pcie_lanes_missing": 8 if second >= SECONDS // 2 else 0}

    (found,) = moved(tmp_path, in_second_half, {1: lanes})
    assert found.counter.name == "pcie_lanes_missing"
    assert found.per_s == pytest.approx(8)


@pytest.mark.parametrize(
    "counter",
    [
        lambda second: {"swap_pages": 5 * second},  # too slow to matter
        lambda second: {"swap_pages": 500 * min(second, SECONDS // 2)},  # while it was not late
        lambda second: {"swap_pages": 500 * second},  # before, too
        lambda second: {"swap_pages": 10_000 * (second >= SECONDS - 10)},  # in a sixth of it
        lambda second: {"swap_pages": 1_000_000 - 500 * second},  # a counter that began anew
        lambda second: {},
    ],
)
def test_what_does_not_explain_the_lateness_is_not_told(
    counter: Callable[[int], dict[str, int]], tmp_path: Path
) -> None:
    assert moved(tmp_path, in_second_half, {1: counter}) == []


def test_no_rank_is_late(tmp_path: Path) -> None:
    assert moved(tmp_path, lambda number: False, {1: swapping}) == []
