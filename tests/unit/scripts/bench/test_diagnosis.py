"""The runs that rules are judged by are read whole, and have the faults that were put into them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ddlprof.store import load_run
from scripts.bench.diagnosis import FAULTS, STEPS, Job, found


@pytest.mark.parametrize("ranks", [1, 2])
def test_its_files_are_read_whole(ranks: int, tmp_path: Path) -> None:
    Job(np.random.default_rng(0), ranks).write(tmp_path)
    read = load_run(tmp_path).ranks
    assert [(len(rank.steps), rank.complete, rank.notes) for rank in read] == [(STEPS, True, [])] * ranks
    assert {len(rank.collectives) for rank in read} == {STEPS if ranks > 1 else 0}
    assert not any(rank.untold is not None and rank.untold.any() for rank in read)


@pytest.mark.parametrize("rule", FAULTS)
def test_its_faults_are_found(rule: str) -> None:
    ranks, fault, _ = FAULTS[rule]
    job = Job(np.random.default_rng(1), ranks)
    assert rule not in found(job)
    fault(job)
    assert rule in found(job)
