"""The description of a job, as the contract writes it, and as a file."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest

from ddlprof.recommender import Measurement, PredictionError, Target, Workload
from ddlprof.recommender.workload import MAX_FILE_BYTES, read_workload, workload_text


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


MEASURED = Measurement(
    "g4dn.12xlarge", placement=(4, 4), batch_per_gpu=12, step_s=0.5, exposed_comm_s=0.1, gpu_model="T4"
)
WORKLOAD = Workload("net", 4, 8, 5e5, None, 3e9, measurements=(MEASURED,), kernels_per_step=300.0)


def test_a_workload_survives_the_file(tmp_path: Path) -> None:
    path = tmp_path / "net.json"
    path.write_text(workload_text(WORKLOAD), encoding="utf-8")
    assert read_workload(path) == WORKLOAD


def step_with(**changes: Any) -> str:
    """A workload file with one operator that is wrong in these fields."""
    operator = {
        "kind": "product", "phase": "forward", "name": "mm", "dtype": "fp32", "shape": [1, 2, 3, 4], "flops": 48.0,
        "bytes": 99.0, "launches": 1, "count": 1, "grows": 1, "fixed_bytes": 9.0,
    }  # fmt: skip
    return json.dumps({"name": "x", "step": {"batch": 4, "precision": "fp32", "operators": [operator | changes]}})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[]", ": an object is expected, not a list"),
        ("{}", "name is missing"),
        ('{"name": "x", "layers": "four"}', "layers: a whole number from 0 to 1e+12 is expected, not 'four'"),
        ('{"name": 3}', "name: a text is expected, not 3"),
        ('{"name": "x", "layers": 1e999}', "the number 1e999 is too large"),
        ('{"name": "x", "layers": NaN}', "NaN is no number"),
        ('{"name": "x", "layers": ' + "9" * 400 + "}", "a number of 400 digits"),
        ('{"name": "\\ud800"}', "half a character"),
        ("[" * 100_000, "more than 32 deep"),
        ('{"name": "x", "measurements": 3}', "measurements: a list is expected, not 3"),
        ('{"name": "x", "measurements": [{"placement": [4], "step_s": 1}]}',
         "measurements[0].batch_per_gpu is missing"),
        ('{"name": "x", "measurements": [{"placement": [0], "step_s": 1, "batch_per_gpu": 1}]}',
         "measurements[0].placement[0]: a whole number from 1 to 100000 is expected, not 0"),
        ('{"name": "x", "measurements": [{"placement": 4, "step_s": 1, "batch_per_gpu": 1}]}',
         "measurements[0].placement: a list is expected, not 4"),
        (step_with(grows=4), "step.operators[0].grows: there is no such size; 4 are in shape"),
        (step_with(grows=-1), "step.operators[0].grows: a whole number of 0 or more is expected, not -1"),
        (step_with(shape=[1, 2]), "step.operators[0].shape: 4 sizes are expected of kind product, not 2"),
        (step_with(shape=[1, 0, 2, 3]), "step.operators[0].shape[1]: a whole number from 1 to "),
        (step_with(shape=[1, 1e18, 3, 4]), "step.operators[0].shape[1]: a whole number from 1 to 1e+13 is expected"),
        (step_with(kind="magic"), "step.operators[0].kind: not a kind of operators"),
        (step_with(phase="sideways"), "step.operators[0].phase: not a phase of a step"),
        (step_with(flops=-1), "step.operators[0].flops: a number from 0 to 1e+21 is expected, not -1"),
        (step_with(fixed_bytes=1e9), "step.operators[0].fixed_bytes: more than all bytes"),
    ],
)  # fmt: skip
def test_damage_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "net.json"
    path.write_text(text)
    with pytest.raises(PredictionError) as raised:
        read_workload(path)
    assert str(raised.value).startswith(f"{path}: ")
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_files_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(PredictionError, match="cannot be read"):
        read_workload(tmp_path / "absent.json")
    with pytest.raises(PredictionError, match="is a directory, not a regular file"):
        read_workload(tmp_path)
    large = tmp_path / "large.json"
    large.write_bytes(b" " * (MAX_FILE_BYTES + 1))
    with pytest.raises(PredictionError, match="at most 4 MiB are read"):
        read_workload(large)
