"""The description of a job, as the contract writes it."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from recommender import Measurement, Workload


def test_the_example_of_the_contract() -> None:
    measured = Measurement(instance_type="g4dn.12xlarge", placement=(1,), batch_per_gpu=12, step_s=0.50,
                           compute_s=None, data_s=None, exposed_comm_s=0.0, precision="fp32", strategy="ddp",
                           grad_accum=1)  # fmt: skip
    workload = Workload(name="bert-base", layers=76, parameter_tensors=199, gradient_bytes=438e6, global_batch=None,
                        flops_per_sample=None, loader_cpu_s_per_sample=None, loader_bytes_per_sample=None,
                        peak_memory_bytes=None, measurements=[measured])  # fmt: skip
    assert workload.measurements[0].step_s == 0.50
    with pytest.raises(FrozenInstanceError):
        workload.layers = 3  # type: ignore[misc]


def test_a_machine_outside_a_cloud_is_described() -> None:
    measured = Measurement(
        placement=(4, 4), batch_per_gpu=12, step_s=0.5, gpu_model="A100", interconnect="NVLink", network_gbps=100
    )
    assert (measured.gpu_model, measured.network_gbps) == ("A100", 100)
