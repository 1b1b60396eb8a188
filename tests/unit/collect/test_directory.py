"""Whose run directory it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddlprof.collect import directory
from ddlprof.model.errors import UserError
from ddlprof.model.manifest import Manifest
from ddlprof.model.options import Options


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def manifest(job: str) -> Manifest:
    return Manifest(name="n", argv=[], job_id=job, created_unix_ns=0, world_size=1, origin_unix_ns=0)


def test_default_names_differ() -> None:
    first, second = (directory.choose(Options(), "train", "job", 0) for _ in range(2))
    assert first != second
    assert first.is_absolute()
    assert first.parent.name == "ddlprof-runs"


def test_chosen_by_the_user(here: Path) -> None:
    path = directory.choose(Options(out="a/b"), "train", "job", 0)
    assert path == here / "a" / "b"
    directory.create(path)
    directory.write_manifest(manifest("job"), path)
    assert directory.choose(Options(out="a/b"), "train", "job", 1) == path  # a restart of the same job


def test_another_jobs_directory_is_refused(here: Path) -> None:
    directory.write_manifest(manifest("other"), here)
    with pytest.raises(UserError, match="choose another with --out") as error:
        directory.choose(Options(out="."), "train", "job", 0)
    assert "\n" not in str(error.value)


def test_a_restart_finds_the_directory_of_its_job() -> None:
    first = directory.choose(Options(), "train", "job", 0)
    directory.write_manifest(manifest("job"), first)
    other = directory.choose(Options(), "train", "other", 0)
    directory.write_manifest(manifest("other"), other)
    assert directory.choose(Options(), "train", "job", 1) == first
    assert directory.choose(Options(), "train", "unknown", 1) not in (first, other)


def test_errors_say_what_to_do(here: Path) -> None:
    (here / "file").touch()
    with pytest.raises(UserError, match=r"cannot .*choose another"):
        directory.choose(Options(out="file"), "train", "job", 0)
    with pytest.raises(UserError, match=r"cannot create .*choose another"):
        directory.create(here / "file" / "x")
    with pytest.raises(UserError, match=r"cannot write .*choose another"):
        directory.write_manifest(manifest("job"), here / "missing")


def test_job_id(monkeypatch: pytest.MonkeyPatch) -> None:
    assert directory.job_id(Options(job_id="x")) == "x"
    assert directory.job_id(Options()) != directory.job_id(Options())
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "abc")
    assert directory.job_id(Options()) == directory.job_id(Options())
    assert directory.job_id(Options()).startswith("abc:")
