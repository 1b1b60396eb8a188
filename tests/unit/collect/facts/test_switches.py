"""What looks at torch's switches see."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from ddlprof.collect.facts.switches import Switches


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    yield
    torch.use_deterministic_algorithms(False)
    torch.autograd.set_detect_anomaly(False)


def test_nobody_has_looked() -> None:
    switches = Switches()
    assert switches.anomaly_share is None
    assert switches.deterministic is None


def test_anomaly_mode_is_a_share_of_the_looks() -> None:
    switches = Switches()
    switches.look()
    torch.autograd.set_detect_anomaly(True)
    switches.look()
    assert switches.anomaly_share == 0.5


def test_the_last_look_tells_whether_algorithms_are_deterministic() -> None:
    switches = Switches()
    torch.use_deterministic_algorithms(True)
    switches.look()
    assert switches.deterministic is True
    torch.use_deterministic_algorithms(False)
    switches.look()
    assert switches.deterministic is False
