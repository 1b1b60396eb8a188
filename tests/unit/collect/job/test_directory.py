"""Whose run directory it is, and which attempt comes next."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from ddlprof.base.errors import UserError
from ddlprof.collect.job import directory
from ddlprof.collect.job.environment import ElasticLaunch
from ddlprof.model.manifest import Manifest
from ddlprof.model.options import Options
from ddlprof.model.records import End
from tests.golden.runs import header, write_rank

FIRST = ElasticLaunch("id", "host-a:1:2")
ELSEWHERE = ElasticLaunch("id", "host-b:3:4")
UNNAMED = ElasticLaunch("none", "host-a:1:2")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def manifest(job: str) -> Manifest:
    return Manifest(name="n", argv=[], job_id=job, created_unix_ns=0, world_size=1, origin_unix_ns=0)


def id_of(start: ElasticLaunch) -> str:
    return directory.new_job_id(Options(), start)


def begun(path: Path | str, start: ElasticLaunch, attempt: int = 0, end: str | None = None) -> Path:
    """What rank 0 of an attempt leaves in `path`."""
    directory.create(Path(path))
    directory.write_manifest(manifest(id_of(start)), Path(path))
    return begun_elsewhere(path, start, start.launcher, rank=0, attempt=attempt, end=end)


def begun_elsewhere(
    path: Path | str, start: ElasticLaunch, launcher: str, rank: int = 1, attempt: int = 0, end: str | None = None
) -> Path:
    """What a rank that `launcher` started leaves there; rank 0 was started by `start`."""
    head = replace(header(rank, 2, attempt), job_id=id_of(start), launcher=launcher)
    write_rank(Path(path), head, [], records=[End(end, 0, 9)] if end else [])
    return Path(path)


def test_default_names_differ() -> None:
    first, second = (directory.claim(Options(), "train", ElasticLaunch()) for _ in range(2))
    assert first.path != second.path
    assert first.path.is_absolute()
    assert first.path.parent.name == "ddlprof-runs"
    assert first.attempt == 0


@pytest.mark.parametrize("start", [FIRST, UNNAMED])
def test_the_same_launcher_goes_on_where_it_was(here: Path, start: ElasticLaunch) -> None:
    claim = directory.claim(Options(out="a/b"), "train", start)
    assert (claim.path, claim.attempt) == (here / "a" / "b", 0)
    begun(claim.path, start)
    again = directory.claim(Options(out="a/b"), "train", start)  # a change of membership counts no restart
    assert (again.path, again.job_id, again.attempt) == (claim.path, claim.job_id, 1)
    begun(claim.path, start, attempt=3)
    assert directory.claim(Options(out="a/b"), "train", replace(start, restarts=1)).attempt == 4


def test_an_attempt_that_left_no_file_is_not_counted() -> None:
    directory.create(Path("run"))
    directory.write_manifest(manifest(id_of(FIRST)), Path("run"))
    assert directory.claim(Options(out="run"), "train", FIRST).attempt == 0


@pytest.mark.parametrize("end", [None, "interrupt", "exception"])
def test_rank_0_on_a_machine_that_is_new_to_the_job(end: str | None) -> None:
    begun("run", FIRST, end=end)
    claim = directory.claim(Options(out="run"), "train", ELSEWHERE)
    assert (claim.job_id, claim.attempt) == (id_of(FIRST), 1)


@pytest.mark.parametrize("end", ["ok", "stopped"])
def test_a_run_that_is_over_is_not_gone_on_with_by_the_same_command(end: str) -> None:
    begun("run", FIRST, end=end)
    with pytest.raises(UserError, match="choose another with --out"):
        directory.claim(Options(out="run"), "train", ELSEWHERE)
    assert directory.claim(Options(out="run"), "train", replace(ELSEWHERE, restarts=1)).attempt == 1


def test_rank_0_on_a_machine_that_had_another_rank() -> None:
    begun("shared", UNNAMED)
    begun_elsewhere("shared", UNNAMED, "host-b:3:4")
    begun_elsewhere("local", UNNAMED, "host-b:3:4")
    for out in ("shared", "local"):
        claim = directory.claim(Options(out=out), "train", ElasticLaunch("none", "host-b:3:4"))
        assert (claim.job_id, claim.attempt) == (id_of(UNNAMED), 1)
        with pytest.raises(UserError):
            directory.claim(Options(out=out), "train", ElasticLaunch("none", "host-c:5:6"))


def test_another_jobs_directory_is_refused(here: Path) -> None:
    directory.write_manifest(manifest("other"), here)
    for start in (ElasticLaunch(), FIRST, replace(FIRST, restarts=1)):
        with pytest.raises(UserError, match="choose another with --out") as error:
            directory.claim(Options(out="."), "train", start)
        assert "\n" not in str(error.value)


def test_the_directory_is_found_again_without_its_name() -> None:
    first = begun(directory.claim(Options(), "train", FIRST).path, FIRST)
    other = ElasticLaunch("other", "host-a:7:8")
    begun(directory.claim(Options(), "train", other).path, other)
    assert directory.claim(Options(), "train", FIRST).path == first
    assert directory.claim(Options(), "train", replace(ELSEWHERE, restarts=1)).path == first
    assert directory.claim(Options(), "train", ELSEWHERE).path != first  # the same command once more
    assert directory.claim(Options(), "evaluate", FIRST).path != first


def test_a_local_folder_of_another_job_is_not_written_to() -> None:
    begun_elsewhere("run", FIRST, "host-b:3:4")
    directory.require_same_job(Path("run"), id_of(FIRST))
    directory.require_same_job(Path("new"), "any")
    with pytest.raises(UserError, match="run directory run is of another job"):
        directory.require_same_job(Path("run"), id_of(ELSEWHERE))


def test_damaged_files_are_nobodys(here: Path) -> None:
    begun_elsewhere("run", FIRST, FIRST.launcher)
    (here / "run" / "attempt-0" / "rank-1.jsonl").write_bytes(b"\xff\n")
    (here / "run" / "attempt-x").mkdir()
    with pytest.raises(UserError, match="choose another with --out"):
        directory.claim(Options(out="run"), "train", FIRST)


@pytest.mark.timeout(20)
def test_what_is_no_file_is_not_waited_for(here: Path) -> None:
    """The training has not begun yet, and must."""
    begun_elsewhere("run", FIRST, FIRST.launcher)
    for path in [here / "run" / "manifest.json", here / "run" / "attempt-0" / "rank-1.jsonl"]:
        path.unlink(missing_ok=True)
        os.mkfifo(path)
    with pytest.raises(UserError, match="choose another with --out"):
        directory.claim(Options(out="run"), "train", FIRST)


def test_errors_say_what_to_do(here: Path) -> None:
    (here / "file").touch()
    with pytest.raises(UserError, match=r"cannot .*choose another"):
        directory.claim(Options(out="file"), "train", ElasticLaunch())
    with pytest.raises(UserError, match=r"cannot create .*choose another"):
        directory.create(here / "file" / "x")
    with pytest.raises(UserError, match=r"cannot write .*choose another"):
        directory.write_manifest(manifest("job"), here / "missing")


def test_job_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    def new_id(options: Options | None = None) -> str:
        return directory.new_job_id(options or Options(), ElasticLaunch.from_environment())

    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    assert new_id(Options(job_id="x")) == "x"
    assert new_id() != new_id()
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "abc")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    assert ElasticLaunch.from_environment().restarts == 2
    assert new_id() == new_id()
    assert new_id().startswith("abc:")
