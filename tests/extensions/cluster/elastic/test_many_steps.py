"""Steps that are predicted all at once are those predicted one by one, whatever is known of the job."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddlprof.extensions.cluster.elastic.measured import MeasuredPredictor
from ddlprof.extensions.cluster.elastic.scaling import Choices, GoodputSpeeds, all_batches
from ddlprof.extensions.cluster.jobs import Job
from ddlprof.extensions.cluster.machines import Placement, parse_cluster
from ddlprof.extensions.cluster.speeds import PredictedSpeeds, Speeds, StepTime, seconds_of
from ddlprof.recommender import Measurement, Predictor, Predicts, Target, Workload

T4, MI300 = "g4dn.12xlarge", Target(gpu_model="MI300X", network_gbps=400)
PLACEMENTS = ((1,), (2,), (4,), (1, 1), (3, 1), (4, 4), (4, 4, 2))


def workload(dice: random.Random) -> Workload:
    """A job with some measurements, on one GPU and on several, that knows more or less of its input."""
    measurements = [
        Measurement(
            T4, placement=placement, batch_per_gpu=(batch := dice.choice([8, 16, 32, 64])),
            grad_accum=dice.choice([1, 1, 2]), strategy=dice.choice(["ddp", "ddp", "fsdp"]), precision="fp32",
            step_s=0.1 + 0.01 * batch * dice.uniform(0.9, 1.1) + 0.05 * len(placement), h2d_s=0.002,
            exposed_comm_s=0.0 if placement == (1,) else dice.choice([None, 0.01, 0.04]),
            data_s=dice.choice([None, 0.001, 0.03]), other_s=0.003, queued_share=dice.choice([None, 0.1]),
        )
        for placement in [(1,), *dice.choices(PLACEMENTS, k=dice.randint(0, 5))]
    ]  # fmt: skip
    return Workload(
        "job", layers=50, parameter_tensors=dice.choice([None, 160]), gradient_bytes=dice.choice([1e7, 4e8]),
        loader_cpu_s_per_sample=dice.choice([None, 0.001]), loader_blocked_s_per_sample=dice.choice([None, 0.0005]),
        loader_workers=dice.choice([0, 4]), loader_bytes_per_sample=dice.choice([None, 1e5]), measurements=measurements,
    )  # fmt: skip


@pytest.mark.slow
@given(seed=st.integers(0, 10**6))
@settings(max_examples=25, deadline=None)
def test_of_a_predictor(seed: int) -> None:
    dice = random.Random(seed)
    predictor = Predictor(workload(dice))
    target = dice.choice([Target(T4), Target(T4, strategy="zero"), Target("g4dn.12xlarge", precision="amp"), MI300])
    which, samples, passes = (
        np.array([dice.randrange(most) + first for _ in range(40)])
        for most, first in ((len(PLACEMENTS), 0), (70, 1), (3, 1))
    )
    found = predictor.step_seconds(target, PLACEMENTS, which, samples, passes)
    for row, step_s in enumerate(found.tolist()):
        one = Target(
            target.instance_type, PLACEMENTS[which[row]], int(samples[row]), target.precision, target.strategy,
            int(passes[row]), target.gpu_model, network_gbps=target.network_gbps,
        )  # fmt: skip
        assert step_s == pytest.approx(predictor.predict(one).step_s, rel=1e-11)


class OneByOne:
    """Speeds without `seconds`."""

    def __init__(self, speeds: Speeds) -> None:
        self._speeds = speeds

    def step(self, job: Job, placement: Placement, batch: int) -> StepTime:
        return self._speeds.step(job, placement, batch)


@pytest.mark.slow
@given(seed=st.integers(0, 10**6), copies=st.sampled_from([1, 1, 2]), noise=st.sampled_from([None, 300.0]))
@settings(max_examples=25, deadline=None)
def test_of_the_choices_of_a_job(seed: int, copies: int, noise: float | None) -> None:
    dice = random.Random(seed)
    steps = [
        Measurement(placement=(gpus,), batch_per_gpu=batch, step_s=0.05 + 0.004 * batch * dice.uniform(0.9, 1.1))
        for gpus, batch in ((1, 16), (1, 64), (2, 32), (4, 32))
    ]
    predictors: dict[str, Predicts] = {
        "measured": MeasuredPredictor(Workload("job", measurements=steps)),
        "predicted": Predictor(workload(dice)),
    }
    name = dice.choice([*predictors])
    speeds: Speeds = PredictedSpeeds(predictors, Target(T4) if name == "predicted" else None)
    speeds = GoodputSpeeds(speeds, {} if noise is None else {name: noise})
    least = dice.randint(1, 40)
    job = Job(
        "1", 0.0, copies, 1e4, least, model=name, min_gpus=copies, max_gpus=20, copy_gpus=copies, min_batch=least,
        max_batch=least * dice.randint(1, 60), max_batch_per_gpu=dice.choice([None, 16, 50]),
    )  # fmt: skip
    cluster = parse_cluster("5x4")
    at_once, apart = (Choices(cluster, each).of(job) for each in (speeds, OneByOne(speeds)))
    assert [choice and choice.batch for choice in at_once] == [choice and choice.batch for choice in apart]
    rates = [[choice.samples_per_s for choice in each if choice] for each in (at_once, apart)]
    assert rates[0] == pytest.approx(rates[1], rel=1e-11)
    tried = [(cluster.packed(gpus), all_batches(job, gpus)) for gpus in (1, 2, 7, 20)]
    assert seconds_of(speeds, job, tried) == pytest.approx(seconds_of(OneByOne(speeds), job, tried), rel=1e-11)
