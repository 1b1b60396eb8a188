"""How long a training waited for processors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from ddlprof.analysis.contention import own_steps_ns
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


@pytest.mark.parametrize("rows", [[], [(100, 5)], [(100, None), (200, None)], [(100, 5), (900, 80)]])
def test_without_two_readings_it_is_not_known(tmp_path: Path, rows: list[tuple[int, int | None]]) -> None:
    assert read(tmp_path, rows) is None


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


def test_only_intervals_among_steady_steps_count(tmp_path: Path) -> None:
    slow = [step(n, start_ms=10 * n if n < 20 else 10 * n + 500) for n in range(40)]  # evaluated after the 20th
    rows = (-50, 0), (50, 0), (150, 20), (250, 20), (750, 30), (850, 60), (1000, 70)
    assert own_ms(tmp_path, slow, *rows) == [8.0, 7.0]
    assert own_ms(tmp_path / "other", slow, *rows, left_out=7) == [7.0]


@pytest.mark.parametrize("rows", [[], [(100, 5)], [(100, None), (200, None)], [(500, 5), (900, 80)]])
def test_where_nothing_was_counted_there_is_no_own_step(tmp_path: Path, rows: list[tuple[int, int | None]]) -> None:
    assert own_ms(tmp_path, [step(n) for n in range(40)], *rows) == []
    assert own_ms(tmp_path / "none", [], *rows) == []


def test_the_own_step_is_the_same_at_any_time_of_the_clock(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    spans = [(n, float(ms)) for n, ms in enumerate(random.uniform(5, 15, 60))]
    starts = np.concatenate([[0.0], np.cumsum([ms for _, ms in spans])])
    queued = np.cumsum(random.uniform(0, 20, 8))
    found = []
    for name, shift in (("a", 0.0), ("b", 86_400_000.0)):
        steps = [step(n, compute_ms=ms - 2, start_ms=float(starts[n]) + shift) for n, ms in spans]
        rows = [(70.0 * k + shift, float(q)) for k, q in enumerate(queued)]
        found.append(own_ms(tmp_path / name, steps, *rows))
    assert found[0] == pytest.approx(found[1], abs=1e-4)
    assert len(found[0]) == 7
