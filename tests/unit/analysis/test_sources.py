"""Which source lines of `other` are named."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from ddlprof.analysis.run import analyse
from ddlprof.analysis.sources import Sources, other_sources
from ddlprof.collect.process.stack_schedule import StackSchedule
from ddlprof.model import codec
from ddlprof.model.records import Flag
from ddlprof.model.source_locations import SourceLocation
from ddlprof.store import load_run
from tests.golden.runs import header, step, write_rank

LOG, SAVE = SourceLocation("train.py:9 log", "logging"), SourceLocation("train.py:30 save")


def sources_of(directory: Path, *samples: tuple[int, dict[int, int]]) -> Sources:
    """Of a run of 40 steps, of which the first 3 are warm-up and the 20th evaluates."""
    rows = [step(n, other_ms=3, flags=Flag.EVALUATION if n == 20 else 0) for n in range(40)]
    lines = [codec.encode_location(0, LOG), codec.encode_location(1, SAVE)]
    lines += [codec.encode_samples(number, counts) for number, counts in samples]
    write_rank(directory, header(), rows, lines=lines)
    (attempt,) = analyse(load_run(directory))
    return other_sources(attempt.ranks)


def test_samples_of_steady_steps_count(tmp_path: Path) -> None:
    sources = sources_of(tmp_path, (0, {0: 50}), (20, {1: 500}), (10, {0: 9}), (11, {0: 6, 1: 5}))
    assert sources.samples == 20
    assert [(s.place, s.share, s.sure) for s in sources.shares] == [(LOG, 0.75, True), (SAVE, 0.25, False)]


@pytest.mark.parametrize(("log", "save", "named"), [(9, 0, []), (10, 0, [True]), (6, 4, [False, False])])
def test_few_samples_name_nothing(tmp_path: Path, log: int, save: int, named: list[bool]) -> None:
    shares = sources_of(tmp_path, (10, {0: log, 1: save} if save else {0: log})).shares
    assert [share.sure for share in shares] == named


def test_a_line_is_one_line_whatever_is_known_of_it_each_time(tmp_path: Path) -> None:
    lines = [codec.encode_location(n, SourceLocation("a.py:1 f", what)) for n, what in enumerate(("", "forward"))]
    lines.append(codec.encode_samples(10, {0: 5, 1: 15}))
    write_rank(tmp_path, header(), [step(n) for n in range(40)], lines=lines)
    (attempt,) = analyse(load_run(tmp_path))
    (share,) = other_sources(attempt.ranks).shares
    assert (share.place, share.share) == (SourceLocation("a.py:1 f", "forward"), 1.0)


def test_a_line_that_becomes_slow_on_the_second_day_is_named(tmp_path: Path) -> None:
    """Each step takes 20 s. One line takes 2 % of it; another one a third, from the 24th of 30 hours on."""
    schedule, drawn, found = StackSchedule(), random.Random(1), dict[int, dict[int, int]]()
    for quarter in range(4 * 30 * 3600):
        now_s = quarter / 4
        share, line = (0.02, 1) if now_s < 24 * 3600 else (0.33, 0)
        if schedule.is_due(1 + now_s, 0, 100) and drawn.random() < share:
            counts = found.setdefault(int(now_s // 20), {})
            counts[line] = counts.get(line, 0) + 1
    rows = [step(n, compute_ms=15_000, other_ms=5_000, data_ms=0) for n in range(30 * 180)]
    lines = [codec.encode_location(0, LOG), codec.encode_location(1, SAVE)]
    write_rank(tmp_path, header(), rows, lines=[*lines, *(codec.encode_samples(*each) for each in found.items())])
    (attempt,) = analyse(load_run(tmp_path))
    sources = other_sources(attempt.ranks)
    true_share = 6 * 0.33 / (6 * 0.33 + 24 * 0.02)
    assert [(share.place, share.sure) for share in sources.shares] == [(LOG, True), (SAVE, False)]
    assert sources.shares[0].share == pytest.approx(true_share, abs=0.1)


def test_few_late_samples_that_stand_for_much_are_not_sure(tmp_path: Path) -> None:
    rows = [step(n, compute_ms=15_000, other_ms=5_000, data_ms=0) for n in range(30 * 180)]
    lines = [codec.encode_location(0, LOG), codec.encode_location(1, SAVE)]
    samples = [codec.encode_samples(10, {1: 30}), codec.encode_samples(30 * 180 - 2, {0: 1})]
    write_rank(tmp_path, header(), rows, lines=[*lines, *samples])
    (attempt,) = analyse(load_run(tmp_path))
    first, second = other_sources(attempt.ranks).shares
    assert (first.place, first.sure, second.sure) == (LOG, False, False)
    assert first.share == pytest.approx(144 / 174, abs=0.01)


def test_a_run_of_minutes_counts_all_samples_alike_however_late_its_first_step_was(tmp_path: Path) -> None:
    rows = [step(n, other_ms=3, start_ms=7_200_000 + 10 * n) for n in range(40)]
    lines = [codec.encode_location(0, LOG), codec.encode_location(1, SAVE)]
    samples = [codec.encode_samples(10, {1: 30}), codec.encode_samples(30, {0: 10})]
    write_rank(tmp_path, header(), rows, lines=[*lines, *samples])
    (attempt,) = analyse(load_run(tmp_path))
    assert [share.share for share in other_sources(attempt.ranks).shares] == [0.75, 0.25]
