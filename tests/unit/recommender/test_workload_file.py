"""A workload written and read again, and what is wrong with a file that is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from recommender import Measurement, PredictionError, Workload
from recommender.workload_file import MAX_FILE_BYTES, read_workload, write_workload

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
    with pytest.raises(PredictionError, match="cannot be written"):
        write_workload(WORKLOAD, tmp_path / "no" / "such.json")
