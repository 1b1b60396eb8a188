"""Waiting for input: what loading takes longer than the rest of the step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddlprof.recommender import Measurement, Target, Workload
from ddlprof.recommender.data_and_other import data_wait_s
from ddlprof.recommender.target import default_catalog, machine_of

MACHINE = replace(machine_of(Target(instance_type="g4dn.12xlarge"), default_catalog()), vcpus=10, storage_gb_s=0.5)
JOB = Workload("job")


def test_what_a_sample_is_blocked_is_carried_over_and_shared_by_the_workers() -> None:
    """A data set that sleeps 5 ms a sample and reads next to nothing."""
    sleeps = replace(
        JOB, loader_blocked_s_per_sample=0.005, loader_bytes_per_sample=100.0, loader_cpu_s_per_sample=1e-5
    )
    for workers, seconds in ((0, 2.56), (None, 2.56), (1, 2.46), (4, 0.54), (32, 0.0)):
        wait = data_wait_s(replace(sleeps, loader_workers=workers), MACHINE, 1, 512, 0.1, None)
        assert wait.seconds == pytest.approx(seconds, abs=1e-3)
    assert (
        "input: blocked for 5 ms a sample as in the run, in the training loop"
        in data_wait_s(sleeps, MACHINE, 1, 512, 0.1, None).basis
    )
    two = data_wait_s(replace(sleeps, loader_workers=2), MACHINE, 1, 512, 0.1, None)
    assert "input: blocked for 5 ms a sample as in the run, over 2 workers" in two.basis


def test_bandwidth_is_added_only_where_the_storage_is_another_one() -> None:
    reads = replace(JOB, loader_blocked_s_per_sample=0.01, loader_workers=2, loader_bytes_per_sample=50e6)
    here = Measurement(MACHINE.name, placement=(1,), batch_per_gpu=20, step_s=1.0, data_s=0.1)
    elsewhere = replace(here, instance_type="p3.2xlarge")
    assert data_wait_s(reads, MACHINE, 1, 20, 0.05, here).seconds == pytest.approx(0.1 - 0.05)
    assert data_wait_s(reads, MACHINE, 1, 20, 0.05, elsewhere).seconds == pytest.approx(0.1 + 2.0 - 0.05)
    older = replace(reads, loader_blocked_s_per_sample=None)  # the run does not tell how long it was blocked
    assert data_wait_s(older, MACHINE, 1, 20, 0.05, here).seconds == pytest.approx(2.0 - 0.05)


def test_a_fast_loader_costs_nothing() -> None:
    assert data_wait_s(replace(JOB, loader_cpu_s_per_sample=0.001), MACHINE, 4, 20, 0.15, None).seconds == 0


def test_what_other_work_took_is_no_wait() -> None:
    busy = Measurement(placement=(1,), batch_per_gpu=10, step_s=5.0, data_s=2.0, queued_share=0.8)
    assert data_wait_s(JOB, MACHINE, 1, 20, 1.2, busy).seconds == pytest.approx(0.8)
    little = replace(busy, data_s=0.05)
    assert data_wait_s(JOB, MACHINE, 1, 20, 1.2, little).seconds == pytest.approx(0.02)


def test_nothing_known_is_said() -> None:
    wait = data_wait_s(JOB, MACHINE, 1, 20, 1.0, None)
    assert wait.seconds == 0
    assert "not known" in wait.basis[0]
