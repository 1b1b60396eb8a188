"""Cases: the same results in one process, in several and in threads, and errors in one line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import joblib
import pytest
from joblib.parallel import ThreadingBackend

from ddlprof.base.errors import UserError
from ddlprof.extensions.cluster.jobs import Job, JobState
from ddlprof.extensions.cluster.machines import Cluster, parse_cluster
from ddlprof.extensions.cluster.policies.fifo import Fifo
from ddlprof.extensions.cluster.policy import Decision
from ddlprof.extensions.cluster.speeds import Speeds
from ddlprof.extensions.cluster.sweep.cases import SimulationCase, cases
from ddlprof.extensions.cluster.sweep.run import Setting, SweepProgress, run_case, run_cases
from ddlprof.extensions.cluster.trace import load_trace, poisson
from scripts.lab.as_measured import AsMeasured

HERE = f"{Path(__file__).stem}"
EXAMPLE = load_trace(Path(__file__).parents[4] / "examples/jobs.csv").jobs


class Drawing(Fifo):
    """Tells the seed that it was given by when it starts the first job."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def decide(
        self, now_s: float, queue: Sequence[JobState], running: Sequence[JobState], cluster: Cluster, predictor: Speeds
    ) -> Decision:
        begin_s = 100_000.0 * (self.seed + 1)
        if now_s < begin_s:
            return Decision(wake_s=begin_s)
        return super().decide(now_s, queue, running, cluster, predictor)


class Failing(Fifo):
    """As a policy of a user's may."""

    def decide(self, *_: object) -> Decision:
        raise ZeroDivisionError("by no GPU")


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> None:
    """This file can be imported as a user's module."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


def setting(draws_arrivals: bool = False, keeps_jobs: bool = True, jobs: Sequence[Job] = EXAMPLE) -> Setting:
    return Setting(jobs, parse_cluster("2x4"), AsMeasured(), draws_arrivals=draws_arrivals, keeps_jobs=keeps_jobs)


class WithoutGenerators(ThreadingBackend):  # type: ignore[misc]  # joblib has no types
    """Returns all results at the end, as Ray's backend does."""

    supports_return_generator = False


def test_every_combination_is_a_case_and_blocks_stand_together() -> None:
    found = cases(["a", "b"], [0, 1], [0.5, None], [None])
    assert len(found) == len(set(found)) == 8
    assert [case.load for case in found] == [0.5] * 4 + [None] * 4
    assert found[:2] == [SimulationCase("a", 0, 0.5), SimulationCase("a", 1, 0.5)]


def test_processes_and_threads_change_nothing() -> None:
    from joblib.externals.loky import get_reusable_executor

    asked = cases(["fifo", "srtf"], [0, 1, 2], [0.5, 0.9], [0.5])
    alone = list(run_cases(setting(draws_arrivals=True), asked, workers=1))
    assert [result.case for result in alone] == asked
    assert list(run_cases(setting(draws_arrivals=True), asked, workers=2)) == alone
    get_reusable_executor().shutdown()
    for backend in (ThreadingBackend(), WithoutGenerators()):
        with joblib.parallel_config(backend=backend, n_jobs=3):
            assert list(run_cases(setting(draws_arrivals=True), asked)) == alone


@pytest.mark.parametrize("load", [0.25, 0.9, 2.0])
@pytest.mark.parametrize("draws_arrivals", [False, True])
def test_the_load_is_the_one_asked_for(load: float, draws_arrivals: bool) -> None:
    found = run_case(setting(draws_arrivals), SimulationCase("fifo", seed=3, load=load)).offered_load
    assert found == pytest.approx(load)


def test_a_seed_draws_arrivals_and_always_the_same() -> None:
    once, again, other = poisson(EXAMPLE, 1), poisson(EXAMPLE, 1), poisson(EXAMPLE, 2)
    assert once == again != other
    assert sorted(job.job_id for job in once) == sorted(job.job_id for job in EXAMPLE)
    assert once[0].submit_s == 0
    many = [Job(str(number), 60.0 * number, 1, 1.0, 1, 1.0) for number in range(2000)]
    assert max(job.submit_s for job in poisson(many, 0)) == pytest.approx(60 * 1999, rel=0.1)


def test_jobs_submitted_at_once_get_a_load_when_arrivals_are_drawn() -> None:
    at_once = [Job(str(number), 5.0, 1, 100.0, 1, 60.0) for number in range(20)]
    with pytest.raises(UserError, match="submitted at once"):
        run_case(setting(jobs=at_once), SimulationCase("fifo", load=0.5))
    with pytest.raises(UserError, match="unless a load is given"):
        run_case(setting(draws_arrivals=True, jobs=at_once), SimulationCase("fifo"))
    found = run_case(setting(draws_arrivals=True, jobs=at_once), SimulationCase("fifo", load=0.5))
    assert found.offered_load == pytest.approx(0.5)


@pytest.mark.usefixtures("own")
def test_a_policy_that_draws_is_given_the_seed_of_the_case() -> None:
    for seed in (0, 2):
        found = run_case(setting(), SimulationCase(f"{HERE}:Drawing", seed))
        assert min(row.first_start_s for row in found.jobs) == 100_000 * (seed + 1)
    found = run_case(setting(), SimulationCase(f"{HERE}:Drawing;seed=4", 0))
    assert min(row.first_start_s for row in found.jobs) == 500_000


@pytest.mark.usefixtures("own")
def test_a_policy_that_fails_is_one_line_with_the_place() -> None:
    with pytest.raises(UserError) as error:
        run_case(setting(), SimulationCase(f"{HERE}:Failing"))
    text = str(error.value)
    assert text.startswith(f"{HERE}:Failing failed: ZeroDivisionError: by no GPU (")
    assert Path(__file__).name in text


def test_other_processes_tell_how_far_they_are() -> None:
    said: list[int] = []
    with SweepProgress(2, said.append) as progress:
        report = progress.of(0)
        report(3)
        report(4)  # too soon after the other to be told
        progress.of(1)(5)
        progress.ended(1, 9)
        progress._add_once()
    assert said[-1] == 12
    assert not report.path.exists()
    progress.of(0)(5)  # a worker that still runs when the others are interrupted
