"""Broadcasts, messages and other operations in which ranks do different work."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ddlprof.analysis.run import Attempt, analyse
from ddlprof.store import load_run
from tests.integration.dist.conftest import DDLPROF, HERE, Job, ranks_of
from tests.integration.dist.rooted import SLEEP_S, STEPS

pytestmark = [pytest.mark.dist, pytest.mark.slow]


def measure(job: Job, directory: Path, variant: str) -> Attempt:
    job(directory, 2, [*DDLPROF, "--no-calibrate", "--out", "run", str(HERE / "rooted.py"), variant])
    (attempt,) = analyse(load_run(directory / "run"))
    return attempt


@pytest.mark.parametrize("variant", ["broadcast", "message", "buffers"])
def test_waiting_for_a_late_rank_is_told(variant: str, job: Job, tmp_path: Path) -> None:
    fast, slow = measure(job, tmp_path, variant).ranks
    waited = [rank.parts.straggler[2:] / 1e9 for rank in (fast, slow)]
    began = [np.array(json.loads((tmp_path / f"began-{rank}.json").read_text()))[2:] for rank in range(2)]
    if np.ptp(began[1] - began[0]) > SLEEP_S:  # then what follows may be beyond what can be told apart, too
        pytest.skip("the machine held a rank up for as long as the late one sleeps")
    assert np.median(waited[0]) > 0.5 * np.median(began[1] - began[0])
    known = waited[1][waited[1] >= 0]
    assert len(known) > len(waited[1]) / 2  # a step in which the machine was busy may be beyond what can be told apart
    assert known.min() < 0.2 * SLEEP_S
    assert slow.lateness.kept_us.sum() > fast.lateness.kept_us.sum()  # in those that follow, either may be by chance


def test_who_takes_part_is_recorded(job: Job, tmp_path: Path) -> None:
    measure(job, tmp_path, "all")
    tables = [rank.collectives for rank in ranks_of(tmp_path / "run", 2)]
    shapes = [[table.shapes[number] for number in table.shape[table.row == STEPS - 1]] for table in tables]
    rooted = [(s.op, s.bytes, s.root) for s in shapes[0] if s.ranks == 2 and ":" not in s.group]
    assert rooted == [("broadcast", 40, 1), ("reduce", 40, 1), ("gather", 80, 0), ("scatter", 80, 0)]
    assert rooted == [(s.op, s.bytes, s.root) for s in shapes[1] if ":" not in s.group]
    messages = [[(s.group, s.op, s.root) for s in own if ":" in s.group] for own in shapes]
    assert messages[0] == [
        ("0:0>1", "send", 1), ("0:1>0", "recv", 1), ("0:0>1#3", "send", 1), ("0:0>1", "send", 1),
    ]  # fmt: skip
    # Rank 1 has received from anybody in the steps before: from then on nobody knows its numbers.
    assert messages[1] == [
        ("0:1>0", "send", 0), ("0:any>1", "recv", 0), ("0:any>1#3", "recv", 0), ("0:any>1", "recv_any_source", None),
    ]  # fmt: skip
