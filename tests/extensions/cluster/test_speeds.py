"""The bridge from the cluster to the recommender."""

from __future__ import annotations

import pytest

from ddlprof.base.errors import UserError
from ddlprof.extensions.cluster.jobs import Job
from ddlprof.extensions.cluster.machines import Placement, parse_cluster
from ddlprof.extensions.cluster.speeds import PredictedSpeeds, part_of
from ddlprof.recommender import Estimate, Measurement, Predictor, StepTimes, Target, Workload
from scripts.lab.as_measured import AsMeasured


class Noted:
    """A predictor that remembers what it was asked; slower on a T4."""

    def __init__(self) -> None:
        self.asked: list[Target] = []

    def predict(self, target: Target) -> Estimate:
        self.asked.append(target)
        step_s = 2.0 if target.gpu_model == "T4" else 1.0
        times = StepTimes(compute_s=0.5, data_s=0.1, h2d_s=0.1, interconnect_s=0.125, network_s=0.125, other_s=0.05)
        return Estimate(step_s, 0.9 * step_s, 1.2 * step_s, times, False, ())


def job(**values: object) -> Job:
    return Job(**{"job_id": "1", "submit_s": 0.0, "gpus": 4, "samples": 100, "batch": 8, "model": "net", **values})  # type: ignore[arg-type]


def test_a_question_becomes_a_target_and_is_asked_once() -> None:
    noted = Noted()
    speeds = PredictedSpeeds({"net": noted}, Target(gpu_model="V100", network_gbps=25))
    for _ in range(2):
        step = speeds.step(job(), Placement((4, 2)), 48)
    assert (step.step_s, step.low_s, step.high_s, step.comm_s) == (1.0, 0.9, 1.2, 0.25)
    assert noted.asked == [Target(gpu_model="V100", network_gbps=25, placement=(4, 2), batch_per_gpu=8, grad_accum=1)]


@pytest.mark.parametrize(
    ("batch", "gpus", "most", "part"),
    [(48, 6, None, (8, 1)), (49, 6, None, (9, 1)), (48, 6, 8, (8, 1)), (49, 6, 8, (5, 2)), (3, 4, None, (1, 1))],
)
def test_the_largest_part_of_a_batch(batch: int, gpus: int, most: int | None, part: tuple[int, int]) -> None:
    assert part_of(batch, gpus, most) == part


def test_jobs_that_it_does_not_know_are_anothers() -> None:
    assert PredictedSpeeds({}, otherwise=AsMeasured()).step(job(step_s=3.0), Placement((1,)), 8).step_s == 3.0
    with pytest.raises(UserError, match="job 1: nothing is known of how long a step of net takes"):
        PredictedSpeeds({}).step(job(), Placement((1,)), 8)


def test_the_recommender_is_asked() -> None:
    measured = [
        Measurement("g4dn.12xlarge", placement=placement, batch_per_gpu=32, step_s=step_s)
        for placement, step_s in (((1,), 0.2), ((4,), 0.25), ((4, 4), 0.4))
    ]
    workload = Workload("net", gradient_bytes=1e8, parameter_tensors=160, measurements=measured)
    speeds = PredictedSpeeds({"net": Predictor(workload)}, Target("g4dn.12xlarge"))
    cluster = parse_cluster("4x4")
    steps = [speeds.step(job(), cluster.packed(gpus), 32 * gpus) for gpus in (1, 4, 8)]
    assert [step.step_s for step in steps] == pytest.approx([0.2, 0.25, 0.4], rel=0.1)
    assert steps[0].comm_s == 0 < steps[1].comm_s < steps[2].comm_s
    assert all(step.low_s < step.step_s < step.high_s for step in steps)
