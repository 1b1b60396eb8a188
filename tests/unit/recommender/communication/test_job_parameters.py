"""The form of communication, and how measurements move and sharpen its parameters."""

from __future__ import annotations

import numpy as np
import pytest

from recommender.communication.coefficients import Prior
from recommender.communication.exposed import Link, Links, Load, Placing, placing_of, step_s
from recommender.communication.job_parameters import JobFit, Observation

LINKS = Links(Link(4.0, 3e-5, 0.4), Link(0.5, 1e-4, 0.4, three_nodes=-0.5))
MEAN = (0.0, 0.0, 0.6, np.log(0.15), np.log(0.02), np.log(0.03), 0.0, 0.0)
PRIOR = Prior(MEAN, (0.4, 0.4, 0.3, 0.7, 1.0, 1.0, 0.1, 0.2), (1.0, 1.0), (0.02, 0.02))
LOAD = Load(0.5, 0.5, 0.5, 200e6, 100)


def test_exposed_communication_falls_with_computation_to_the_last_bucket() -> None:
    z = np.array(MEAN)
    exposed = [
        float(step_s(z, LINKS, placing_of((1, 1)), LOAD._replace(hiding_s=hiding))[1])
        for hiding in (0.0, 0.3, 0.6, 9.0)
    ]
    assert exposed == sorted(exposed, reverse=True)
    assert exposed[-1] > 0.15 * 200e6 / 0.5e9


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
