"""The bubble of real pipelines, whose stages take known times, against the formula."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ddlprof
from ddlprof.analysis.bubbles import find_pipelines
from ddlprof.analysis.run import analyse
from ddlprof.report.run.data import build_report
from ddlprof.store import load_run
from tests.integration.dist.conftest import DDLPROF, HERE, Job, ranks_of
from tests.integration.dist.pipeline import FORWARD_S, SLOW_FACTOR

pytestmark = [pytest.mark.dist, pytest.mark.slow]

TOLERANCE = 0.05
"""Of the step."""
PARTS = ("interconnect_s", "network_s", "straggler_s", "bubble_s")


def measured(job: Job, directory: Path, ranks: int, *words: object) -> ddlprof.Run:
    job(directory, ranks, [*DDLPROF, "--out", "run", str(HERE / "pipeline.py"), *map(str, words)])
    ranks_of(directory / "run", ranks)
    return ddlprof.load(str(directory / "run"))


def means(run: ddlprof.Run) -> Any:
    """The medians over steps of each rank, without the first ones: a busy machine makes single steps long."""
    steps = run.steps[run.steps["step"] > 2]
    assert (abs(steps[list(PARTS)].sum(axis=1) - steps["comm_s"]) < 1e-6 * steps["step_s"]).all()
    return steps.groupby("rank").median(numeric_only=True)


def times_of(found: Any, micro_batches: int) -> float:
    """What a forward and a backward of a micro-batch took on a rank, sleeping and all that is around it."""
    return float((found["compute_forward_s"] + found["compute_backward_s"]).mean()) / micro_batches


@pytest.mark.parametrize(
    ("name", "ranks", "micro_batches", "virtual"),
    [
        ("ScheduleGPipe", 2, 4, 1),
        pytest.param("ScheduleGPipe", 4, 4, 1, marks=pytest.mark.nightly),
        ("Schedule1F1B", 2, 4, 1),
        pytest.param("Schedule1F1B", 4, 8, 1, marks=pytest.mark.nightly),
        ("ScheduleInterleaved1F1B", 2, 4, 2),
        pytest.param("ScheduleInterleaved1F1B", 4, 8, 2, marks=pytest.mark.nightly),
        ("by_hand", 4, 4, 1),
    ],
)
def test_the_bubble_is_that_of_the_formula(
    job: Job, tmp_path: Path, name: str, ranks: int, micro_batches: int, virtual: int
) -> None:
    run = measured(job, tmp_path, ranks, name, micro_batches, virtual)
    (pipeline,) = find_pipelines(ranks_of(tmp_path / "run", ranks))
    assert pipeline.schedule == ("" if name == "by_hand" else name)
    assert (pipeline.stages, pipeline.virtual, pipeline.micro_batches) == (ranks * virtual, virtual, micro_batches)
    found = means(run)
    of_micro_batch = times_of(found, micro_batches)
    assert of_micro_batch >= 3 * FORWARD_S * virtual
    step_s, formula_s = float(found["step_s"].mean()), (ranks - 1) / virtual * of_micro_batch
    for rank in range(ranks):
        assert abs(found["bubble_s"][rank] - formula_s) < TOLERANCE * step_s
        assert found["straggler_s"][rank] + found["interconnect_s"][rank] < 2 * TOLERANCE * step_s


def test_a_slow_stage_is_a_straggler_and_not_the_bubble(job: Job, tmp_path: Path) -> None:
    ranks, micro_batches, slow = 4, 8, 3
    run = measured(job, tmp_path, ranks, "Schedule1F1B", micro_batches, 1, slow)
    found = means(run)
    work = found["compute_forward_s"] + found["compute_backward_s"]
    step_s, formula_s = float(found["step_s"].mean()), (ranks - 1) * float(work.mean()) / micro_batches
    others = [rank for rank in range(ranks) if rank != slow]
    for rank in others:
        assert abs(found["bubble_s"][rank] - formula_s) < TOLERANCE * step_s
        more = found["comm_s"][rank] - found["bubble_s"][rank]
        assert abs(found["straggler_s"][rank] - more) < TOLERANCE * step_s
        assert more > 0.5 * (SLOW_FACTOR - 1) * 3 * FORWARD_S * micro_batches
    assert found["straggler_s"][slow] < TOLERANCE * step_s
    data = load_run(tmp_path / "run")
    report = build_report(data, analyse(data), data.origin_unix_ns)
    named = {each.rule: each for each in report.findings}["uneven_stages"]
    assert named.title.startswith("stage 3 (the last) takes ")
    assert "only here: head" in named.evidence
    assert named.ranks == (slow,)
    assert report.pipeline is not None
    assert (report.pipeline.schedule, report.pipeline.stages) == ("1F1B", ranks)
