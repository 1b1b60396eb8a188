"""The wheel: built and tried in an environment of its own, and the checks of its contents on made-up ones."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from scripts import check_wheel

NO_REGISTRY = ("No matching distribution found", "Could not find a version")


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_it_is_complete_and_works_without_torch() -> None:
    command = [sys.executable, check_wheel.__file__]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode and any(words in done.stderr for words in NO_REGISTRY):
        pytest.skip("no registry of packages here")
    assert done.returncode == 0, done.stderr


@pytest.fixture
def complete(tmp_path: Path) -> Path:
    """A wheel with the files of the working tree."""
    wheel = tmp_path / "ddlprof-0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, path in check_wheel.packaged().items():
            archive.write(path, name)
        archive.writestr("ddlprof-0.dist-info/METADATA", "")
    return wheel


def test_all_files_and_no_others_are_right(complete: Path) -> None:
    assert check_wheel.wrong_files(complete) == []


def test_a_wheel_for_one_kind_of_machine_has_the_core_in_c(complete: Path) -> None:
    built = complete.rename(complete.with_name("ddlprof-0-cp310-abi3-linux_x86_64.whl"))
    assert check_wheel.wrong_files(built) == ["lacks ddlprof/collect/_core.abi3.so"]
    with zipfile.ZipFile(built, "a") as archive:
        archive.writestr("ddlprof/collect/_core.abi3.so", "")
    assert check_wheel.wrong_files(built) == []


def test_a_file_too_many_is_wrong(complete: Path) -> None:
    with zipfile.ZipFile(complete, "a") as archive:
        archive.writestr("tests/golden/runs.py", "")
    assert check_wheel.wrong_files(complete) == ["has tests/golden/runs.py"]


@pytest.mark.parametrize(
    "name",
    ["ddlprof/py.typed", "ddlprof/launch/startup/sitecustomize.py", "ddlprof/instance_catalog/data/prices.csv",
     "ddlprof/recommender/compute/coefficients.json", "ddlprof/recommender/compute/operators.json",
     "ddlprof/recommender/communication/coefficients.json"],
)  # fmt: skip
def test_a_file_that_the_package_needs_is_missed(complete: Path, name: str) -> None:
    less = complete.with_stem("less")
    with zipfile.ZipFile(complete) as archive, zipfile.ZipFile(less, "w") as copy:
        for entry in archive.infolist():
            if entry.filename != name:
                copy.writestr(entry, archive.read(entry))
    assert check_wheel.wrong_files(less) == [f"lacks {name}"]
