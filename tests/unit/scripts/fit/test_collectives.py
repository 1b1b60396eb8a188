"""The cost of all-reduces over NVLink: found again where it is known, and of devices that were left out."""

from __future__ import annotations

import numpy as np
import pytest

from scripts.fit.collectives import Reductions, fit_reductions, left_out_errors, read_reductions, seconds_of
from tests.unit.scripts.fit.published import PUBLISHED

TRUTH = (30e-6, 0.4, 0.7)


def made_up() -> Reductions:
    sizes = np.tile(np.geomspace(1e6, 1e9, 10), 4)
    gpus = np.tile(np.repeat([2.0, 8.0], 10), 2)
    links = np.repeat([450.0, 900.0], 20)
    devices = ("sm_90",) * 20 + ("sm_103",) * 20
    at = Reductions(devices, gpus, sizes, np.ones(40), links)
    return Reductions(devices, gpus, sizes, seconds_of(TRUTH, at), links)


def test_the_fit_finds_lead_and_efficiency() -> None:
    assert fit_reductions(made_up()) == pytest.approx(TRUTH, rel=0.01)
    assert max(left_out_errors(made_up()).values()) < 0.01


@pytest.mark.skipif(PUBLISHED is None, reason="the published measurements (../shared/data) are not here")
def test_a_device_left_out_is_predicted() -> None:
    assert PUBLISHED
    errors = left_out_errors(read_reductions(PUBLISHED))
    assert set(errors) == {"A100-SXM4-80GB", "B200", "B300", "GB200", "H100-SXM5-80GB"}
    assert max(errors.values()) < 0.3
