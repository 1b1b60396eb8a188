"""Simulations made by hand: what every format makes of them does not hang on any policy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from ddlprof.extensions.cluster.report import csv, json
from ddlprof.extensions.cluster.report import text as table
from ddlprof.extensions.cluster.report.data import SimulatedData, SimulationQuestion, build
from ddlprof.extensions.cluster.simulation.metrics import ClusterUse, PolicyMetrics, SimulatedJob, Waited
from ddlprof.extensions.cluster.sweep.cases import CaseResult, SimulationCase, cases
from tests.golden.runs import write_expected

EXPECTED = Path(__file__).with_name("simulated-expected")
POLICIES = ("fifo", "dally;lease_s=600", "mine:Policy")
_MEAN_S = {"fifo": 9000.0, "dally;lease_s=600": 8000.0, "mine:Policy": 8400.0}


def question(name: str = "week-1", seeds: Sequence[int] = (0, 1)) -> SimulationQuestion:
    """Four jobs on two machines."""
    return SimulationQuestion(
        trace=name,
        jobs=4,
        asked_gpu_hours=8.25,
        submitted_within_s=7200.0,
        cluster="2x4:V100",
        machines=2,
        racks=1,
        gpus=8,
        gpu_models=["V100-SXM2-16GB"],
        seeds=list(seeds),
        restart_s=30.0,
        pred_error=0.25,
        arrivals="trace",
        notes=["1 job asked for more GPUs than there are: left out", "a job runs on as many GPUs as it asks for"],
    )


def result(case: SimulationCase, name: str = "resnet") -> CaseResult:
    """What came of a case; nobody can tell how fair it is to its jobs where the load is above 1."""
    mean_s = _MEAN_S.get(case.policy, 9500.0) * (1 + 0.05 * case.seed) * (case.load or 0.5)
    is_known = case.load is None or case.load <= 1
    summary = PolicyMetrics(
        jobs=4,
        makespan_s=20_000.0,
        completion_mean_s=mean_s,
        completion_median_s=0.9 * mean_s,
        completion_p95_s=2 * mean_s,
        wait_mean_s=mean_s - 2000,
        wait_median_s=mean_s - 2500,
        wait_p95_s=mean_s,
        gpu_hours=8.25,
        comm_gpu_hours=0.5 if case.policy == "fifo" else 0.0,
        used=0.75,
        stops=case.seed,
        jain=0.5 if is_known else None,
        worst_fairness=1.5 if is_known else None,
        unfair=0.25 if is_known else None,
        wait_longest_s=1.5 * mean_s,
    )
    pieces = [(0.0, 8.0, 0.0), (5000.0, 6.0, 1.5), (10_000.0, 8.0, 2.0), (15_000.0, 2.0, 0.0)]
    row = SimulatedJob(
        job_id=name, model=name, gpus=4, submit_s=0.0, first_start_s=60.0, end_s=3660.0, completion_s=3660.0,
        waited_s=60.0, ideal_s=3600.0, slowdown=3660 / 3600, finish_time_fairness=None, gpu_hours=4.0,
        comm_gpu_hours=0.0, stops=0,
    )  # fmt: skip
    return CaseResult(
        case=case,
        offered_load=case.load or 0.5,
        summary=summary,
        over_time=[ClusterUse(begin_s, begin_s + 5000, gpus, waiting) for begin_s, gpus, waiting in pieces],
        completion_cdf=[(0.5 * mean_s, 0.5), (mean_s, 0.75), (2 * mean_s, 1.0)],
        comm_dimensions={} if case.policy == "fifo" else {"tensor": 0.25, "data": 1.5},
        longest_waits=[Waited(name, 4, 1.5 * mean_s, 4.5 if is_known else None)],
        jobs=[row],
    )


def results(policies: Sequence[str] = POLICIES, name: str = "resnet") -> list[CaseResult]:
    """Of two seeds and two loads."""
    return [result(case, name) for case in cases(policies, (0, 1), (0.5, 1.2), (0.5,))]


def simulated() -> SimulatedData:
    """All of them side by side."""
    return build(question(), results())


def golden_simulations() -> dict[str, str]:
    """Every format but the page, by file name."""
    data = simulated()
    once = build(question(seeds=[0]), [result(SimulationCase(policy)) for policy in POLICIES])
    return {
        "table.txt": table.render(data),
        "one-seed.txt": table.render(once),
        "json.txt": json.render(data),
        **csv.render(results()),
        "jobs.csv": _jobs(results()),
    }


def _jobs(found: Sequence[CaseResult]) -> str:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "jobs.csv"
        with csv.job_file(path) as without_jobs:
            assert not any(without_jobs(each).jobs for each in found)
        return path.read_text(encoding="utf-8")


if __name__ == "__main__":
    write_expected(EXPECTED, golden_simulations())
