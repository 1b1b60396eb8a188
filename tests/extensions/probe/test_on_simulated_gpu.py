"""A probe of one GPU among several: it opens no context on another, and makes its operands on the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from ddlprof.extensions.probe.device import ProbeDevice
from ddlprof.extensions.probe.model import Figure
from ddlprof.extensions.probe.single_device import copies, launches, memory, products
from scripts.lab import simulated_cuda

SECONDS = 0.01


@pytest.mark.parametrize(
    ("measure", "copied"),
    [
        (lambda device: products(device, "bf16", SECONDS), 0),
        (lambda device: memory(device, SECONDS), 0),
        (lambda device: copies(device, SECONDS), None),
        (lambda device: launches(device, SECONDS), 2 * 16),
    ],
    ids=["products", "memory", "copies", "launches"],
)
def test_one_device_has_all_of_it(measure: Callable[[ProbeDevice], Iterator[Figure]], copied: int | None) -> None:
    with simulated_cuda.simulated(devices=3) as machine:
        device = ProbeDevice(torch, 1)
        figures = list(measure(device))
        assert machine.contexts == {1}
        to_device = [each for each in machine.activities if each.name == "Memcpy HtoD"]
    assert figures
    assert all(figure.value > 0 for figure in figures)
    assert copied is None or len(to_device) == copied  # 16 small layers with weight and bias are made on the host, once
