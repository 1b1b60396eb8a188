"""A workload written and read again, and what is wrong with a file that is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from recommender import Measurement, PredictionError, Workload
from recommender.workload_file import read_workload, write_workload

MEASURED = Measurement(
    "g4dn.12xlarge", placement=(4, 4), batch_per_gpu=12, step_s=0.5, exposed_comm_s=0.1, gpu_model="T4"
)
WORKLOAD = Workload("net", 4, 8, 5e5, None, 3e9, measurements=(MEASURED,), kernels_per_step=300.0)


def test_a_workload_survives_the_file(tmp_path: Path) -> None:
    path = tmp_path / "net.json"
    write_workload(WORKLOAD, path)
    assert read_workload(path) == WORKLOAD


def test_what_is_not_there_is_not_known(tmp_path: Path) -> None:
    path = tmp_path / "net.json"
    path.write_text('{"name": "net", "layers": 3, "of_a_later_version": 1}')
    assert read_workload(path) == Workload("net", layers=3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[]", "the workload is not an object"),
        ("{}", "the workload has no name"),
        ('{"name": "x", "layers": "four"}', "the workload: layers: not a number"),
        ('{"name": 3}', "the workload: name: not a text"),
        ('{"name": "x", "measurements": 3}', "measurements: not a list"),
        ('{"name": "x", "measurements": [{"placement": [4], "step_s": 1}]}', "measurement 1 has no batch_per_gpu"),
        ('{"name": "x", "measurements": [{"placement": [0], "step_s": 1, "batch_per_gpu": 1}]}',
         "measurement 1: placement: not a list of positive whole numbers"),
        ('{"name": "x", "measurements": [{"placement": 4, "step_s": 1, "batch_per_gpu": 1}]}',
         "measurement 1: placement: not a list"),
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
    with pytest.raises(PredictionError, match="cannot be written"):
        write_workload(WORKLOAD, tmp_path / "no" / "such.json")
