"""The context counters of a real CUDA device."""

from __future__ import annotations

import time

import pytest

from ddlprof.collect.facts.counters import ContextSampler
from ddlprof.collect.facts.machine import host_facts

pytestmark = pytest.mark.gpu


def test_counters_are_those_of_the_device_in_use() -> None:
    import torch

    sampler = ContextSampler(0, time.perf_counter_ns)
    held = torch.zeros(256 * 2**20, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    row = sampler.sample()
    sampler.close()
    assert row is not None
    assert row.gpu_memory_bytes is not None
    assert row.gpu_memory_bytes >= held.numel()
    assert row.gpu_percent is not None
    assert 0 <= row.gpu_percent <= 100
    assert row.gpu_clock_mhz
    assert row.gpu_temperature_c
    assert row.gpu_power_limit_w
    assert row.gpu_throttle_reasons is not None


def test_host_facts_agree_with_torch() -> None:
    import torch

    facts = host_facts()
    assert torch.cuda.get_device_name(0) in facts["gpus"]
    assert facts["gpu_driver"]
