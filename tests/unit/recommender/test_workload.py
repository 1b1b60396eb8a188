"""The description of a job, as the contract writes it."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from recommender import Measurement, PredictionError, Target, Workload


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


GOOD: dict[type, dict[str, Any]] = {
    Measurement: {"instance_type": None, "placement": (1,), "batch_per_gpu": 1, "step_s": 1.0},
    Workload: {"name": "net"},
    Target: {},
}


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        (Measurement, {"step_s": 0}, "measurement: step_s: a number from 1e-06 to 10000000 is expected, not 0"),
        (Measurement, {"step_s": float("nan")},
         "measurement: step_s: a number from 1e-06 to 10000000 is expected, not nan"),
        (Measurement, {"data_s": -1}, "measurement: data_s: a number from 0 to 10000000 is expected, not -1"),
        (Measurement, {"step_s": 1e9},
         "measurement: step_s: a number from 1e-06 to 10000000 is expected, not 1000000000.0"),
        (Measurement, {"compute_s": 0.9, "data_s": 0.3},
         "measurement: its parts (compute_s, data_s, ...) are 1.2 s together, step_s is 1"),
        (Measurement, {"placement": 4}, "measurement: placement: a list is expected, not 4"),
        (Measurement, {"network_gbps": 0}, "measurement: network_gbps: a positive number is expected, not 0"),
        (Workload, {"layers": -1}, "workload: layers: a whole number from 0 to 1e+12 is expected, not -1"),
        (Workload, {"gradient_bytes": 1e300},
         "workload: gradient_bytes: a number from 0 to 1e+18 is expected, not 1e+300"),
        (Workload, {"global_batch": 0},
         "workload: global_batch: a whole number from 1 to 1000000000 is expected, not 0"),
        (Workload, {"measurements": [1]}, "workload: measurements[0]: an object is expected, not 1"),
        (Workload, {"assumed": "all"}, "workload: assumed: a list is expected, not 'all'"),
        (Target, {"gpu_model": 5}, "target: gpu_model: a text is expected, not 5"),
        (Target, {"grad_accum": 1.5}, "target: grad_accum: a whole number from 1 to 1000000000 is expected, not 1.5"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_when_it_is_made(kind: type, change: dict[str, Any], message: str) -> None:
    kind(**GOOD[kind])
    with pytest.raises(PredictionError) as caught:
        kind(**GOOD[kind] | change)
    assert str(caught.value) == message
