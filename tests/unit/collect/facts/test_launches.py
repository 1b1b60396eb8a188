"""How fast a host launches operators, timed without a trace in what the script has set."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from ddlprof.collect.facts.launches import launch_us


def test_it_is_a_time_of_one_operator() -> None:
    found = launch_us(torch)
    assert found is not None
    assert 0.05 < found < 1e5  # no processor launches twenty operators in a microsecond


@pytest.fixture
def settings_of_a_script() -> Iterator[list[str]]:
    """Hooks of all modules, a default device that has no numbers, no gradients, and another default type."""
    called: list[str] = []
    hook = torch.nn.modules.module.register_module_forward_hook(lambda module, *_: called.append(str(module)))
    torch.set_default_device("meta")
    torch.set_default_dtype(torch.float64)
    try:
        with torch.no_grad():
            yield called
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
        hook.remove()


def test_nothing_of_the_script_takes_part_or_changes(settings_of_a_script: list[str]) -> None:
    before = torch.get_rng_state()
    assert launch_us(torch) is not None
    assert settings_of_a_script == []
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.is_grad_enabled()
    assert torch.empty(1).device.type == "meta"


def test_anomaly_mode_tells_nothing() -> None:
    with torch.autograd.set_detect_anomaly(True):
        assert launch_us(torch) is None
