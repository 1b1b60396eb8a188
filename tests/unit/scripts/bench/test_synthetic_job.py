"""The run that `scripts.bench.merge`, `trace` and `fleet` measure is one that today's readers take."""

from __future__ import annotations

from pathlib import Path

from ddlprof.store import load_run
from scripts.bench.synthetic_job import BUCKETS, write_job


def test_the_run_is_read_whole(tmp_path: Path) -> None:
    write_job(tmp_path / "run", ranks=4, steps=3, nodes=2)
    ranks = load_run(tmp_path / "run").ranks
    assert [len(rank.steps) for rank in ranks] == [3] * 4
    assert [len(rank.collectives) for rank in ranks] == [3 * BUCKETS] * 4
    assert {rank.status for rank in ranks} == {"ok"}
