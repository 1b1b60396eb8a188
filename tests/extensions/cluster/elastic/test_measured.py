"""Step times from a job's own measurements."""

from __future__ import annotations

import numpy as np
import pytest

from ddlprof.extensions.cluster.elastic.measured import MeasuredPredictor
from ddlprof.recommender import Measurement, PredictionError, Target, Workload


def workload(*rows: tuple[tuple[int, ...], int, float]) -> Workload:
    return Workload("net", measurements=[Measurement(placement=p, batch_per_gpu=b, step_s=s) for p, b, s in rows])


def truth(placement: tuple[int, ...], batch: int) -> float:
    gpus, nodes = sum(placement), len(placement)
    return 0.02 + 0.001 * batch + (gpus > 1) * (0.03 + 0.005 * (gpus - 2)) + (nodes > 1) * 0.1


def measured(*places: tuple[tuple[int, ...], int]) -> MeasuredPredictor:
    return MeasuredPredictor(workload(*((p, b, truth(p, b)) for p, b in places)))


def test_finds_what_the_measurements_were_made_of() -> None:
    predictor = measured(((1,), 16), ((1,), 64), ((2,), 16), ((4,), 16), ((2, 2), 16))
    for placement, batch in (((3,), 32), ((4, 4), 128), ((1,), 8)):
        assert predictor.predict(Target(placement=placement, batch_per_gpu=batch)).step_s == pytest.approx(
            truth(placement, batch)
        )
    found = predictor.predict(Target(placement=(4, 4), batch_per_gpu=10, grad_accum=3))
    assert found.step_s == pytest.approx(3 * 0.03 + 0.06 + 0.1)
    assert (found.compute_s, found.interconnect_s, found.network_s) == pytest.approx((0.09, 0.06, 0.1))


def test_one_and_two_ranks_are_enough_for_these() -> None:
    predictor = measured(((1,), 16), ((1,), 64), ((2,), 16))
    inside, beyond = (predictor.predict(Target(placement=(gpus,), batch_per_gpu=32)) for gpus in (2, 4))
    assert inside.step_s == pytest.approx(truth((2,), 32))
    assert not inside.extrapolated
    assert beyond.extrapolated
    assert beyond.high_s / beyond.step_s > inside.high_s / inside.step_s
    assert "4 ranks, and at most 2 were measured" in beyond.basis


def test_from_one_batch_computing_grows_with_the_batch_and_that_is_said() -> None:
    found = measured(((1,), 16)).predict(Target(batch_per_gpu=32))
    assert found.step_s == pytest.approx(2 * truth((1,), 16))
    assert found.basis[1] == "one batch was measured: computing is taken to grow with the batch"
    assert measured(((1,), 16)).predict(Target(batch_per_gpu=16)).extrapolated is False


def test_measurements_that_disagree_widen_the_interval() -> None:
    calm = MeasuredPredictor(workload(((1,), 16, 0.1), ((1,), 32, 0.2), ((1,), 64, 0.4)))
    wild = MeasuredPredictor(workload(((1,), 16, 0.15), ((1,), 32, 0.15), ((1,), 64, 0.5)))
    widths = [p.predict(Target(batch_per_gpu=32)) for p in (calm, wild)]
    assert widths[0].high_s / widths[0].step_s < 1.1 < widths[1].high_s / widths[1].step_s


def test_what_nobody_measured_is_refused_or_said() -> None:
    with pytest.raises(PredictionError, match=r"net: measured with one rank only.*placement 2; measure it"):
        measured(((1,), 16)).predict(Target(placement=(2,), batch_per_gpu=16))
    with pytest.raises(PredictionError, match="no step was measured"):
        MeasuredPredictor(Workload("net"))
    over = measured(((1,), 16), ((2,), 16)).predict(Target(placement=(1, 1), batch_per_gpu=16))
    assert "several machines were not measured: taken for one" in over.basis


def test_no_steps_take_no_seconds() -> None:
    none = np.array([], dtype=np.int64)
    for predictor in (measured(((1,), 16)), measured(((1,), 16), ((2,), 16))):
        assert len(predictor.step_seconds(Target(), [(2,)], none, none, none)) == 0
