"""Which source lines of `other` are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddlprof.analysis.run import analyse
from ddlprof.analysis.sources import Sources, other_sources
from ddlprof.model import codec
from ddlprof.model.records import Flag
from ddlprof.model.source_places import SourcePlace
from ddlprof.store import load_run
from tests.golden.runs import header, step, write_rank

LOG, SAVE = SourcePlace("train.py:9 log", "logging"), SourcePlace("train.py:30 save")


def sources_of(directory: Path, *samples: tuple[int, dict[int, int]]) -> Sources:
    """Of a run of 40 steps, of which the first 3 are warm-up and the 20th evaluates."""
    rows = [step(n, other_ms=3, flags=Flag.EVALUATION if n == 20 else 0) for n in range(40)]
    lines = [codec.encode_place(0, LOG), codec.encode_place(1, SAVE)]
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
    lines = [codec.encode_place(n, SourcePlace("a.py:1 f", what)) for n, what in enumerate(("", "forward"))]
    lines.append(codec.encode_samples(10, {0: 5, 1: 15}))
    write_rank(tmp_path, header(), [step(n) for n in range(40)], lines=lines)
    (attempt,) = analyse(load_run(tmp_path))
    (share,) = other_sources(attempt.ranks).shares
    assert (share.place, share.share) == (SourcePlace("a.py:1 f", "forward"), 1.0)
