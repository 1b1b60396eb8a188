"""Which source lines of `other` are named."""

from __future__ import annotations

from pathlib import Path

from ddlprof.analysis.run import analyse
from ddlprof.analysis.sources import other_sources
from ddlprof.model import codec
from ddlprof.model.source_places import SourcePlace
from ddlprof.store import load_run
from tests.golden.runs import header, step, write_rank

LOG, SAVE = SourcePlace("train.py:9 log", "logging"), SourcePlace("train.py:30 save")


def test_a_run_of_minutes_counts_all_samples_alike_however_late_its_first_step_was(tmp_path: Path) -> None:
    rows = [step(n, other_ms=3, start_ms=7_200_000 + 10 * n) for n in range(40)]
    lines = [codec.encode_place(0, LOG), codec.encode_place(1, SAVE)]
    samples = [codec.encode_samples(10, {1: 30}), codec.encode_samples(30, {0: 10})]
    write_rank(tmp_path, header(), rows, lines=[*lines, *samples])
    (attempt,) = analyse(load_run(tmp_path))
    assert [share.share for share in other_sources(attempt.ranks).shares] == [0.75, 0.25]
