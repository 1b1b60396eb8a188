"""Runs whose ranks wrote on their own machines: parts are merged, and files of two jobs are refused."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from ddlprof.analysis.run import analyse
from ddlprof.base.errors import UserError
from ddlprof.model.records import End
from ddlprof.report.run.data import build_report
from ddlprof.report.run.formats import as_json
from ddlprof.store import RunData, load_run
from tests.golden.runs import MS, NOW_UNIX_NS, SHAPES, ddp_step, header, manifest, step, write_rank

PARTS = ("host-a", "host-b")


def write_parts(directory: Path, whole: Path | None = None, world: int = 2) -> list[Path]:
    """A job of two ranks on two machines, once in two parts and, where wanted, once in one directory."""
    for rank, name in enumerate(PARTS):
        for folder in (directory / name, *([whole] if whole else [])):
            made = [ddp_step(rank, n) for n in range(20)]
            head = header(rank, world, node=name[-1])
            times = [t for _, ts in made for t in ts]
            write_rank(folder, head, [row for row, _ in made], SHAPES, times, [End("ok", 0, 9000 * MS)])
            if rank == 0:
                manifest(world).write(folder)
    return [directory / name for name in PARTS]


def report_of(run: RunData) -> str:
    return as_json(replace(build_report(run, analyse(run), NOW_UNIX_NS), run="RUN"))


def test_a_copy_made_while_the_job_ran_gives_way_to_the_longer_one(tmp_path: Path) -> None:
    one, two = write_parts(tmp_path / "parts")
    early = tmp_path / "early"
    shutil.copytree(one, early)
    text = (early / "attempt-0" / "rank-0.jsonl").read_bytes()
    (early / "attempt-0" / "rank-0.jsonl").write_bytes(text[: len(text) // 2])
    expected = report_of(load_run([one, two]))
    assert report_of(load_run([early, one, two])) == expected
    assert report_of(load_run([one, two, early])) == expected


def test_different_files_of_one_rank_are_refused(tmp_path: Path) -> None:
    one, _ = write_parts(tmp_path)
    write_rank(tmp_path / "other", header(0, 2), [ddp_step(1, 3)[0]])
    with pytest.raises(UserError, match=rf"^{one} and \S+/other have different files attempt-0/rank-0.jsonl: name"):
        load_run([one, tmp_path / "other"])


def test_two_jobs_are_refused(tmp_path: Path) -> None:
    one, two = write_parts(tmp_path)
    replace(manifest(2), job_id="another").write(two)
    with pytest.raises(UserError, match=rf"^{one} and {two} are of two jobs: name the directories of one$"):
        load_run([one, two])


def test_parts_without_a_manifest_are_known_by_their_job(tmp_path: Path) -> None:
    one, two, three = (tmp_path / name for name in ("one", "two", "three"))
    for part, rank, job in ((one, 0, "job"), (two, 1, "job"), (three, 1, "another")):
        write_rank(part, replace(header(rank, 2), job_id=job), [step(n) for n in range(3)])
    assert [rank.rank for rank in load_run([one, two]).ranks] == [0, 1]
    message = rf"^{one} and {three} are of two jobs: name the directories of one$"
    with pytest.raises(UserError, match=message):
        load_run([one, three])
    manifest(2).write(one)
    with pytest.raises(UserError, match=message):
        load_run([three, one])


def test_files_that_do_not_tell_their_job_are_read(tmp_path: Path) -> None:
    one, two = write_parts(tmp_path)
    write_rank(tmp_path / "new", replace(header(0, 2, attempt=1), job_id="job"), [step(0)])
    assert [(rank.attempt, rank.rank) for rank in load_run([one, two, tmp_path / "new"]).ranks] == [
        (0, 0), (0, 1), (1, 0)
    ]  # fmt: skip


def test_jobs_of_different_size_are_refused(tmp_path: Path) -> None:
    one, _ = write_parts(tmp_path / "of-2")
    _, two = write_parts(tmp_path / "of-4", world=4)
    with pytest.raises(UserError, match="rank 0 is of a job of 2 ranks and rank 1 of one of 4: name"):
        load_run([one, two])


def test_a_part_that_is_none_is_named(tmp_path: Path) -> None:
    one, _ = write_parts(tmp_path)
    with pytest.raises(UserError, match=rf"^{tmp_path}/nowhere: no such run directory"):
        load_run([one, tmp_path / "nowhere"])
