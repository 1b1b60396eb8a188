"""The job that never ran is read as one that did: the benches of what reads runs stand on it."""

from __future__ import annotations

from pathlib import Path

from ddlprof.store import load_run
from scripts.bench.synthetic_job import BUCKETS, write_job


def test_its_files_are_read_whole(tmp_path: Path) -> None:
    write_job(tmp_path / "run", ranks=4, steps=5, nodes=2)
    ranks = load_run(tmp_path / "run").ranks
    assert [(len(rank.steps), rank.complete, rank.notes, rank.drops) for rank in ranks] == [(5, True, [], [])] * 4
    assert [len(rank.collectives) for rank in ranks] == [5 * BUCKETS] * 4
