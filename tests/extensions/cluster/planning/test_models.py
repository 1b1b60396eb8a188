"""Jobs of a trace that may be scaled, as the speed of their model is known."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddlprof.base.errors import UserError
from ddlprof.extensions.cluster.jobs import Job
from ddlprof.extensions.cluster.machines import parse_cluster
from ddlprof.extensions.cluster.penalties import PenalisedSpeeds, shipped_penalties
from ddlprof.extensions.cluster.planning.models import with_known_models
from ddlprof.extensions.cluster.policy import policy_factory
from ddlprof.extensions.cluster.simulation.core import simulate

CLUSTER = parse_cluster("2x4")
TRACE = [
    Job("a", 0.0, gpus=2, samples=2000.0, batch=2, step_s=1.0, model="LM"),
    Job("b", 0.0, gpus=1, samples=500.0, batch=1, step_s=1.0, model="other"),
]


def known(tmp_path: Path, lines: str) -> tuple[list[Job], PenalisedSpeeds]:
    (tmp_path / "models.csv").write_text(f"name,run,max_gpus,min_batch,max_batch\n{lines}\n")
    otherwise = PenalisedSpeeds(CLUSTER, shipped_penalties())
    jobs, speeds, _ = with_known_models(tmp_path / "models.csv", TRACE, CLUSTER, otherwise)
    return jobs, speeds  # type: ignore[return-value]


def test_a_job_takes_the_time_of_the_trace_on_what_it_asks_for_and_less_on_more(tmp_path: Path) -> None:
    jobs, speeds = known(tmp_path, "LM,1x20=0.10;1x40=0.18;2x40=0.11;4x80=0.12,8,20,320")
    assert (jobs[0].batch, jobs[0].fewest_gpus, jobs[0].most_gpus) == (20, 1, 8)
    assert jobs[1] == TRACE[1]

    def end_s(name: str) -> float:
        simulated = simulate(jobs, CLUSTER, policy_factory(name)(), speeds)
        return next(outcome.end_s for outcome in simulated.outcomes if outcome.job.job_id == "a")

    assert end_s("fifo") == pytest.approx(1000.0)
    assert end_s("elastic") < 0.5 * end_s("fifo")


def test_it_asks_for_more_than_was_thought(tmp_path: Path) -> None:
    jobs, _ = known(tmp_path, "LM,1x20=0.10;2x40=0.11,1,20,20")
    assert (jobs[0].fewest_gpus, jobs[0].most_gpus, jobs[0].batch) == (1, 2, 20)


def test_no_job_has_such_a_model(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no job of the trace has a model of this file, such as lm"):
        known(tmp_path, "lm,1x20=0.10,8,20,320")
