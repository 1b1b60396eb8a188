"""The form of communication, and how measurements move and sharpen its parameters."""

from __future__ import annotations

import numpy as np
import pytest

from ddlprof.recommender.communication import job_parameters
from ddlprof.recommender.communication.coefficients import Prior
from ddlprof.recommender.communication.exposed import Link, Links, Load, Placing, placing_of, step_s
from ddlprof.recommender.communication.job_parameters import JobFit, Observation
from tests.short import first_short

LINKS = Links(Link(4.0, 3e-5, 0.4), Link(0.5, 1e-4, 0.4, line_share=0.8, flows=2.0))
MEAN = (0.0, 0.0, 0.6, np.log(0.15), np.log(0.02), np.log(0.03), 0.0, 0.0, 0.0)
PRIOR = Prior(MEAN, (0.4, 0.4, 0.3, 0.7, 1.0, 1.0, 0.1, 0.2, 0.2), (1.0, 1.0), (0.02, 0.02))
LOAD = Load(0.5, 0.5, 0.5, 200e6, 100)


def test_arrays_give_what_numbers_give() -> None:
    z = np.array(MEAN)
    placements = [(2,), (1, 1), (4, 4), (2, 2, 2)]
    columns = np.array([placing_of(p) for p in placements], dtype=float).T
    rest, exposed = step_s(z, LINKS, Placing(*columns), LOAD)
    for position, placement in enumerate(placements):
        one_rest, one_exposed = step_s(z, LINKS, placing_of(placement), LOAD)
        assert (rest[position], exposed[position]) == pytest.approx((one_rest, one_exposed))


def test_the_fit_finds_the_parameters_behind_its_measurements() -> None:
    truth = np.array(MEAN)
    truth[1] += 0.5
    seen = []
    for placement in ((1, 1), (2, 2), (4, 4)):
        rest, exposed = step_s(truth, LINKS, placing_of(placement), LOAD)
        seen.append(Observation(LINKS, placing_of(placement), LOAD, float(rest + exposed), float(exposed)))
    target = placing_of((3, 3))
    rest, exposed = step_s(truth, LINKS, target, LOAD)
    found, before = (JobFit(PRIOR, rows).predict(LINKS, target, LOAD) for rows in (seen, []))
    assert found.rest_s + found.exposed_s == pytest.approx(float(rest + exposed), rel=0.02)
    assert abs(before.exposed_s - float(exposed)) > 5 * abs(found.exposed_s - float(exposed))
    assert found.sd < before.sd


def test_another_measurement_never_widens() -> None:
    fit = JobFit(PRIOR, [])
    target = placing_of((4, 4))
    now = fit.sd_of(LINKS, target, LOAD)
    for placement in ((2,), (1, 1), (4, 4)):
        assert fit.sd_after(LINKS, target, LOAD, placing_of(placement), LOAD) <= now


def made_up_jobs(count: int) -> list[np.ndarray]:
    """Parameters of jobs that differ as the prior says."""
    random = np.random.default_rng(7)
    return [np.array(MEAN) + np.array(SPREAD) * random.standard_normal(len(MEAN)) for _ in range(count)]


SPREAD = (0.3, 0.3, 0.2, 0.4, 0.6, 0.6, 0.06, 0.1, 0.2)
JOBS = Prior(MEAN, SPREAD, (1.0, 1.0), (0.02, 0.02))
HIDING = Load(4.0, 4.0, 4.0, 200e6, 100)
"""So much computation that all but the last bucket is hidden behind it."""
BEND = Load(0.8, 0.8, 0.8, 200e6, 100)
"""About as much computation as hides the reductions of two GPUs."""


def observed(truth: np.ndarray, at: Placing, load: Load, dearer: float) -> Observation:
    """What is measured at a placement whose reductions cost more, by a logarithm, than the form says."""
    here = truth.copy()
    here[:2] += dearer
    rest, exposed = step_s(here, LINKS, at, load)
    return Observation(LINKS, at, load, float(rest + exposed), float(exposed))


def errors_of_larger_worlds(measured: list[tuple[tuple[int, ...], Load]], jobs: int = 40) -> tuple[float, float]:
    """Mean errors at 8 and 16 nodes with little computation: from the prior alone, and with these measurements."""
    random = np.random.default_rng(11)
    errors: list[list[float]] = [[], []]
    for truth in made_up_jobs(jobs):
        seen = [observed(truth, placing_of(at), load, random.normal(0.0, 0.4)) for at, load in measured]
        for position, rows in enumerate(([], seen)):
            fit = JobFit(JOBS, rows)
            for nodes in (8, 16):
                at = placing_of((4,) * nodes)
                rest, exposed = step_s(truth, LINKS, at, LOAD)
                found = fit.predict(LINKS, at, LOAD)
                errors[position].append(abs(np.log((found.rest_s + found.exposed_s) / float(rest + exposed))))
    return float(np.mean(errors[0])), float(np.mean(errors[1]))


@pytest.mark.parametrize(
    "measured", first_short([[((1, 1), HIDING)], [((4,), HIDING), ((1, 1), HIDING)], [((1, 1), BEND)]])
)
def test_points_whose_communication_was_hidden_do_not_make_larger_worlds_worse(
    measured: list[tuple[tuple[int, ...], Load]],
) -> None:
    before, after = errors_of_larger_worlds(measured)
    assert after <= before


@pytest.mark.slow
def test_points_whose_communication_was_exposed_teach_more_than_hidden_ones() -> None:
    _, hidden = errors_of_larger_worlds([((4,), HIDING), ((1, 1), HIDING)])
    before, exposed = errors_of_larger_worlds([((4,), LOAD), ((1, 1), LOAD)])
    assert exposed < 0.9 * before
    assert exposed < hidden


@pytest.mark.parametrize("seen", [[], [((4,), LOAD), ((1, 1), LOAD)]])
def test_more_nodes_take_longer(seen: list[tuple[tuple[int, ...], Load]]) -> None:
    truth = np.array(MEAN)
    fit = JobFit(JOBS, [observed(truth, placing_of(at), load, 0.0) for at, load in seen])
    steps = [fit.predict(LINKS, placing_of((4,) * nodes), LOAD) for nodes in (3, 4, 8, 16, 32, 64)]
    seconds = [step.rest_s + step.exposed_s for step in steps]
    assert seconds == sorted(seconds)
    assert seconds[-1] > seconds[0]


def test_a_full_host_is_told_from_communication() -> None:
    """Ranks that slow each other down in one machine do so without any exchange: nothing of it is a dearer network."""
    crowded = np.array(MEAN)
    crowded[7] += 0.1
    at = placing_of((8,))
    fit = JobFit(JOBS, [observed(crowded, at, LOAD, 0.0)])
    before, after = (f.predict(LINKS, placing_of((8, 8)), LOAD) for f in (JobFit(JOBS, []), fit))
    assert after.rest_s > 1.03 * before.rest_s
    assert after.exposed_s == pytest.approx(before.exposed_s, rel=0.02)


def slow_cluster(exposed_s: float) -> JobFit:
    """A job whose full machine exposes so much, on links that should hide it all."""
    links = Links(Link(25.0, 3e-5, 0.4), Link(10.0, 3e-5, 0.4))
    full, two = (placing_of(placement) for placement in ((8,), (1, 1)))
    seen = [
        Observation(links, full, LOAD, 0.5 + exposed_s, exposed_s), Observation(links, two, LOAD, 0.52, 0.02)
    ]  # fmt: skip
    return JobFit(JOBS, seen)


@pytest.mark.parametrize("exposed_s", [1e-3, 0.05, 0.2, 0.6, 2.0])
def test_a_measured_point_returns_its_classes(exposed_s: float) -> None:
    fit = slow_cluster(exposed_s)
    for seen in fit.observations:
        found = fit.predict(seen.links, seen.placing, seen.load)
        assert found.exposed_s == pytest.approx(seen.exposed_s, rel=0.05, abs=5e-4)
        assert found.rest_s == pytest.approx(0.5, rel=0.02)


FAST = Links(Link(60.0, 3e-5, 0.4), Link(20.0, 5e-5, 0.8))
"""NVLink and RDMA."""
STALL_SD = 0.4
"""How late the slowest rank is on a cluster that scatters, as a share of the step: half-normal."""
PLACEMENTS = ((2,), (4,), (8,), (1, 1), (4, 4), (8, 8), (8, 8, 8, 8))


def stalled(links: Links, truth: np.ndarray, at: Placing, load: Load, share: float) -> Observation:
    """What is measured where the slowest rank is late by a share of the step."""
    rest, exposed = (float(part) for part in step_s(truth, links, at, load))
    late_s = share * (rest + exposed)
    return Observation(links, at, load, rest + exposed + late_s, exposed + late_s)


CLUSTERS = Prior(MEAN, (0.58, 0.58, *SPREAD[2:]), (1.0, 1.0), (0.02, 0.02))
"""Of a cluster that nobody has measured."""
LARGE = Load(0.5, 0.5, 0.5, 440e6, 200)
SMALL = LARGE._replace(compute_s=0.1, hiding_s=0.1)


def mean_errors(links: Links, stall_sd: float, jobs: int = 12) -> tuple[float, float]:
    """Of all other placements at two batches, as they would be measured: without, and with two measured points."""
    random = np.random.default_rng(5)
    errors: list[list[float]] = [[], []]
    for truth in made_up_jobs(jobs):
        shares = iter(abs(random.normal(0.0, stall_sd, size=100)))
        seen = [stalled(links, truth, placing_of(at), LARGE, next(shares)) for at in ((8,), (1, 1))]
        targets = [
            stalled(links, truth, placing_of(at), load, next(shares)) for at in PLACEMENTS for load in (LARGE, SMALL)
        ]
        for position, fit in enumerate((JobFit(CLUSTERS, []), JobFit(CLUSTERS, seen))):
            for target in targets:
                found = fit.predict(links, target.placing, target.load)
                errors[position].append(abs((found.rest_s + found.exposed_s) / target.rest_and_exposed_s - 1))
        for one in seen:
            found = JobFit(CLUSTERS, seen).predict(links, one.placing, one.load)
            assert found.rest_s + found.exposed_s == pytest.approx(one.rest_and_exposed_s, rel=0.02)
    return float(np.mean(errors[0])), float(np.mean(errors[1]))


@pytest.mark.parametrize("links", [LINKS, FAST], ids=["slow links", "fast links"])
@pytest.mark.parametrize("stall_sd", first_short([STALL_SD, 0.0, 0.1]))
def test_measured_points_make_no_group_worse(links: Links, stall_sd: float) -> None:
    """Not by more than two hundredths of the step in the mean, whatever the points scatter by."""
    zero, few = mean_errors(links, stall_sd)
    assert few <= zero + 0.02


def test_believing_every_point_makes_a_group_worse_that_scatters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_parameters, "SCATTER", ((0.0, 1.0),))
    zero, few = mean_errors(FAST, STALL_SD)
    assert few > zero + 0.05


def test_doubt_grows_with_what_the_form_does_not_explain_and_widens() -> None:
    truth, target = np.array(MEAN), placing_of((4, 4))
    fits = [
        JobFit(
            JOBS,
            [stalled(FAST, truth, placing_of(at), LOAD, late) for at, late in (((8,), share), ((1, 1), 0.0))],
        )
        for share in (0.0, 0.05, 0.6)
    ]
    assert [fit.doubt for fit in fits] == sorted(fit.doubt for fit in fits)
    assert fits[0].doubt < 0.1
    assert fits[2].doubt > 0.3
    assert fits[2].predict(FAST, target, LOAD).sd > 2 * fits[0].predict(FAST, target, LOAD).sd


def test_many_targets_at_once_are_those_one_by_one() -> None:
    fit = JobFit(JOBS, [stalled(FAST, np.array(MEAN), placing_of((8,)), LOAD, 0.5)])
    columns = Placing(*np.array([placing_of(p) for p in PLACEMENTS], dtype=float).T)
    rest, exposed = fit.seconds(FAST, columns, LOAD._replace(compute_s=np.full(len(PLACEMENTS), LOAD.compute_s)))
    for position, placement in enumerate(PLACEMENTS):
        one = fit.predict(FAST, placing_of(placement), LOAD)
        assert (rest[position], exposed[position]) == pytest.approx((one.rest_s, one.exposed_s))
