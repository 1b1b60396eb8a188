"""How long a training waited for processors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ddlprof.analysis.contention import other_cores, own_steps_ns
from ddlprof.analysis.run import analyse
from ddlprof.model.records import ContextRow, StepRow
from ddlprof.store import load_run
from tests.golden.runs import MS, header, step, write_rank


def counter(at_ms: float, queued_ms: float | None) -> ContextRow:
    """The counter of what the main thread waited so far, at this millisecond."""
    queued = None if queued_ms is None else round(queued_ms * MS)
    return ContextRow(round(at_ms * MS), None, 1, None, None, None, None, process_queued_ns=queued)


def read(folder: Path, *ranks: Sequence[tuple[int, int | None]]) -> float | None:
    """Ranks of 400 ms whose counter stands so at these milliseconds."""
    for rank, rows in enumerate(ranks):
        counters = [counter(*row) for row in rows]
        write_rank(folder, header(rank, len(ranks)), [step(n) for n in range(40)], records=counters)
    return analyse(load_run(folder))[0].queued_share


def test_the_rank_that_waited_most_while_it_trained(tmp_path: Path) -> None:
    waited = [(-5000 + 5001, 0), (100, 10), (300, 30), (900, 500)]  # the last one is after the training
    assert read(tmp_path, waited, [(100, 7), (200, 8), (300, 57)]) == pytest.approx(0.25)


@pytest.mark.parametrize(("busy", "others"), [(2.0, 0.5), (1.0, 0.0), (None, None)])
def test_what_is_left_of_the_busy_cores_is_other_work(tmp_path: Path, busy: float | None, others: float | None) -> None:
    """The job itself keeps 1.5 cores of each rank busy."""
    for rank, cores in enumerate((1, 2)):
        rows = [replace(counter(at, 0), job_cpu_ns=at * cores * MS) for at in (100, 300)]
        write_rank(tmp_path, header(rank, 2), [step(n) for n in range(40)], records=rows)
    assert other_cores(load_run(tmp_path).ranks, busy) == others


def test_a_rank_that_does_not_tell_its_own_leaves_it_open(tmp_path: Path) -> None:
    write_rank(tmp_path, header(), [step(n) for n in range(40)], records=[counter(100, 0), counter(300, 0)])
    assert other_cores(load_run(tmp_path).ranks, 2.0) is None


def own_ms(
    folder: Path, steps: Sequence[StepRow], *rows: tuple[float, float | None], left_out: int = -1
) -> list[float]:
    """The own steps of a rank of which all steps but one are steady."""
    write_rank(folder, header(), list(steps), records=[counter(*row) for row in rows])
    (rank,) = load_run(folder).ranks
    steady = np.array([row.step != left_out for row in steps])
    return [round(value / MS, 6) for value in own_steps_ns(rank, steady)]


def test_a_step_without_what_it_waited_for_a_processor(tmp_path: Path) -> None:
    steps = [step(n) for n in range(40)]  # of 10 ms
    assert own_ms(tmp_path, steps, (100, 5), (200, 45), (300, 45), (325, 55)) == [6.0, 10.0, 6.0]


@pytest.mark.parametrize("rows", [[], [(100, 5)], [(100, None), (200, None)], [(500, 5), (900, 80)]])
def test_where_nothing_was_counted_there_is_no_own_step(tmp_path: Path, rows: list[tuple[int, int | None]]) -> None:
    assert own_ms(tmp_path, [step(n) for n in range(40)], *rows) == []
    assert own_ms(tmp_path / "none", [], *rows) == []
