"""What jobs lose when they are spread, and the waits that follow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from ddlprof.extensions.cluster.advice import (
    Advice,
    Ask,
    Estimated,
    Scaled,
    SpreadCost,
    Wait,
    advise,
    packed,
    read_history,
    spread,
    usual_wait_s,
    worth_waiting_s,
)
from ddlprof.extensions.cluster.machines import Level
from ddlprof.instance_catalog.errors import CatalogError
from ddlprof.recommender import Estimate, Measurement, PredictionError, Predictor, StepTimes, Target
from ddlprof.recommender.workload import read_workload

HETERO = ("devices", "predicted", "search", "simulation")
TARGET = Target(gpu_model="V100", network_gbps=25.0, batch_per_gpu=32)


class Told:
    """Steps by placement, or by the network where that is given."""

    def __init__(self, steps: dict[tuple[int, ...] | float, float]) -> None:
        self.steps = steps

    def predict(self, target: Target) -> Estimate:
        step_s = self.steps.get(target.network_gbps or 0.0) or self.steps.get(target.placement)
        if step_s is None:
            raise PredictionError("nobody knows")
        times = StepTimes(compute_s=step_s)
        return Estimate(step_s, 0.9 * step_s, 1.2 * step_s, times, False, ("told",))


def ran(placement: tuple[int, ...], step_s: float, batch: int = 32) -> Measurement:
    return Measurement(placement=placement, batch_per_gpu=batch, step_s=step_s, gpu_model="V100", network_gbps=25.0)


def of(advice: Advice, level: Level) -> SpreadCost:
    loss = advice.loss(level)
    assert loss is not None
    return loss


def told(loss: SpreadCost) -> list[float]:
    """The slowdown with its interval, if it has one, without the errors of rounding."""
    assert loss.slowdown is not None
    return [round(each, 6) for each in loss.slowdown if each is not None]


def scaled(ask: Ask, steps: dict[tuple[int, ...] | float, float], measured: Sequence[Measurement] = ()) -> Scaled:
    found = advise("job", ask, measured, Told(steps)).scaled
    assert found is not None
    return found


def test_twice_as_many_gpus_share_the_same_batch() -> None:
    target = replace(TARGET, network_gbps=None)
    steps: dict[tuple[int, ...] | float, float] = {(8,): 0.4, (8, 8): 0.25}
    found = scaled(Ask(8, 8, target), steps)
    assert (found.gpus, found.placement) == (16, (8, 8))
    assert found.speed_up == pytest.approx((0.4 / 0.25, 0.4 / 0.3, 0.4 / 0.225))
    assert scaled(Ask(1, 8, target), {(1,): 0.4, (2,): 0.2}).speed_up == pytest.approx((2, 2 / 1.2, 2 / 0.9))


def test_a_measured_speed_up_has_no_interval() -> None:
    runs = [ran((8,), 0.4, batch=32), ran((8, 8), 0.25, batch=16)]
    found = scaled(Ask(8, 8, TARGET), {}, runs).speed_up
    assert found is not None
    assert (round(found.mean, 6), found.low, found.high) == (1.6, None, None)


def test_steps_of_other_numbers_of_passes_are_not_taken() -> None:
    twice = replace(TARGET, grad_accum=2)
    of_two = [replace(ran((8,), 0.4), grad_accum=2), replace(ran((4, 4), 0.6), grad_accum=2)]
    of_one = [ran((8,), 0.2), ran((4, 4), 0.4), ran((8, 8), 0.25)]
    found = advise("job", Ask(8, 8, twice), [*of_two, *of_one], Told({}))
    assert found.step_s == 0.4
    assert told(of(found, Level.RACK)) == [1.5]
    assert found.scaled is not None
    assert found.scaled.speed_up == pytest.approx((0.4 / 0.25, None, None))


def test_what_cannot_be_halved_is_not_scaled() -> None:
    odd = scaled(Ask(8, 8, replace(TARGET, batch_per_gpu=1)), {(8,): 0.4, (8, 8): 0.25})
    assert (odd.speed_up, odd.why_not) == (None, "the batch of 1 of a GPU cannot be halved")
    assert scaled(Ask(8, 8, replace(TARGET, batch_per_gpu=1, grad_accum=2)), {25.0: 0.4}).speed_up is not None
    assert scaled(Ask(8, 8, TARGET), {}).why_not == "nobody knows"


@pytest.mark.parametrize(
    ("gpus", "per_machine", "closest", "apart"),
    [
        (8, 8, (8,), (4, 4)),
        (2, 8, (2,), (1, 1)),
        (3, 8, (3,), (2, 1)),
        (12, 8, (6, 6), (3, 3, 3, 3)),
        (17, 8, (6, 6, 5), (3, 3, 3, 3, 3, 2)),
        (1, 8, (1,), (1,)),
    ],
)
def test_placements(gpus: int, per_machine: int, closest: tuple[int, ...], apart: tuple[int, ...]) -> None:
    assert packed(gpus, per_machine) == closest
    assert spread(gpus, per_machine) == apart


def test_a_faster_spread_is_none() -> None:
    advice = advise("j", Ask(8, 8, TARGET), [], Told({(8,): 1.0, (4, 4): 0.7}))
    assert of(advice, Level.RACK).slowdown == Estimated(1.0, 1.0, 1.0)
    assert of(advice, Level.RACK).wait_share == Estimated(0.0, 0.0, 0.0)


@pytest.mark.parametrize("beyond", [(8,), (4, 4)])
def test_no_wait_is_told_beyond_what_was_fitted(beyond: tuple[int, ...]) -> None:
    class Beyond(Told):
        def predict(self, target: Target) -> Estimate:
            found = super().predict(target)
            if target.placement != beyond:
                return found
            return replace(found, extrapolated=True, basis=("told", "outside what was fitted: gradient bytes"))

    told_steps: dict[tuple[int, ...] | float, float] = {(8,): 1.0, (4, 4): 5.0}
    loss = of(advise("j", Ask(8, 8, TARGET), [], Beyond(told_steps)), Level.RACK)
    assert told(loss) == [5.0, 4.5, 6.0]
    assert loss.wait_share is None
    assert loss.why_not == "outside what was fitted: gradient bytes; no wait is told there"
    measured = [ran((8,), 0.2), ran((4, 4), 0.3)]
    assert of(advise("j", Ask(8, 8, TARGET), measured, Beyond(told_steps)), Level.RACK).wait_share is not None


@pytest.mark.parametrize(("gpus", "gbps"), [(4, 5.0), (4, 25.0), (2, 10.0)])
def test_beyond_what_was_fitted_it_does_not_contradict_the_plan_for_the_same_machines(gpus: int, gbps: float) -> None:
    """GPT-2 large has more gradients than any job of the fit."""
    job = read_workload(Path(__file__).parents[3] / "examples/gpt2-large.json")
    gpu, batch = "A100-SXM4-80GB", 8
    target = Target(gpu_model=gpu, network_gbps=gbps, interconnect="nvlink3", batch_per_gpu=batch)
    ask = Ask(gpus, gpus, target, gradient_bytes=job.gradient_bytes)
    loss = of(advise("j", ask, [], Predictor(job)), Level.RACK)
    assert loss.slowdown is not None
    assert loss.slowdown.low is not None
    assert loss.slowdown.high is not None
    rooms = [pytest.importorskip(f"ddlprof.extensions.hetero.{name}") for name in HETERO]  # which may be taken out
    devices, predicted, search, simulation = rooms
    machines = [
        devices.GpuNode(f"m{number}", of_one, link_gb_s=100.0, network_gb_s=gbps / 8, gpu_model=gpu, memory_gib=80)
        for number, of_one in enumerate(loss.placement)
    ]
    alone = devices.GpuNode("m", gpus, 100.0, None, gpu, memory_gib=80)
    planned = []
    for nodes in (tuple(machines), (alone,)):
        problem, _ = predicted.predicted_problem(job, devices.Devices(nodes), gpus * batch)
        planned.append(simulation.simulate(problem, search.uniform(problem)[search.EVEN_AR]).step_s)
    said = planned[0] / planned[1]
    assert loss.slowdown.low <= said <= loss.slowdown.high
    assert said / 2 <= loss.slowdown.mean <= 2 * said


def test_one_gpu_has_nothing_to_spread() -> None:
    assert advise("j", Ask(1, 8, TARGET, TARGET), [], Told({(1,): 1.0})).losses == ()


def test_nothing_is_said_that_is_not_known() -> None:
    advice = advise("j", Ask(8, 8, TARGET), [], Told({}))
    assert of(advice, Level.RACK).slowdown is None
    assert of(advice, Level.RACK).why_not == "nobody knows"
    assert of(advice, Level.NETWORK).why_not == "the network between racks is not known: give --between-racks-gbps"
    assert advice.step_s is None
    assert worth_waiting_s(of(advice, Level.RACK), 3600.0, 8, None) is None


def test_the_break_even_of_waiting() -> None:
    """Waiting that long and running on the closest GPUs takes as long as starting at once on the others."""
    loss = SpreadCost(Level.RACK, (4, 4), Estimated(1.5, None, None), wait_share=Estimated(0.5, 0.2, 1.5))
    rest_s = 7200.0
    wait_s = worth_waiting_s(loss, rest_s, 8, None)
    assert wait_s == Estimated(3600.0, 1440.0, 10800.0)
    assert wait_s.mean + rest_s == rest_s * 1.5


def test_a_history_ends_the_wait_where_dally_would() -> None:
    history = [Wait(8, "machine", leases * 1200.0) for leases in (8, 10, 12)]
    assert usual_wait_s(history, 8, Level.RACK) == 14 * 1200.0
    assert usual_wait_s(history, 8, Level.NETWORK) == 12 * 1200.0  # nobody waited for a rack
    assert usual_wait_s(history, 4, Level.RACK) == 6 * 1200.0
    loss = SpreadCost(Level.RACK, (4, 4), Estimated(1.5, None, None), wait_share=Estimated(0.5, 0.2, 1.5))
    assert worth_waiting_s(loss, 1e6, 8, history) == Estimated(14 * 1200.0, 14 * 1200.0, 14 * 1200.0)
    assert worth_waiting_s(loss, 1e4, 8, history) == Estimated(5000.0, 2000.0, 15000.0)


@pytest.mark.parametrize("line", ["8,rack,-1", "8,switch,60", "0,rack,60", "8,rack,x"])
def test_a_bad_history_names_its_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "h.csv"
    path.write_text(f"gpus,level,waited_s\n4,rack,60\n{line}\n")
    with pytest.raises(CatalogError, match=r"h\.csv"):
        read_history(path)
    path.write_text("gpus,level,waited_s\n4,rack,60\n")
    assert read_history(path) == [Wait(4, "rack", 60.0)]
