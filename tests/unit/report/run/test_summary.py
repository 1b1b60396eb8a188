"""The summary of a run: what fleets of runs are listed by, made of its report and read again with care."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from ddlprof.analysis.run import analyse
from ddlprof.cli.app import main
from ddlprof.model.classes import CLASSES, TIMES
from ddlprof.model.records import End
from ddlprof.model.run_summary import SUMMARY_NAME, RunSummary
from ddlprof.report.run.data import build_report
from ddlprof.report.run.summary import summarise_run
from ddlprof.store import load_run
from ddlprof.store.run_summary import MAX_SUMMARY_BYTES, decode_summary
from tests.golden.runs import HERE, MS, NOW_UNIX_NS, ORIGIN_UNIX_NS, header, manifest, simple_run, step, write_rank
from tests.unit.cli.hostile import NAME, write_run


def summary_of(directory: Path) -> RunSummary:
    run = load_run(directory)
    attempts = analyse(run)
    return summarise_run(run, attempts, build_report(run, attempts, NOW_UNIX_NS))


def test_of_the_golden_run() -> None:
    found = summary_of(HERE / "two-ranks")
    assert (found.job, found.model, found.job_id) == ("train", "SmallNet", "job")
    assert (found.world_size, found.ranks, found.hosts, found.attempts, found.device) == (2, 2, 1, 1, "cpu")
    assert (found.steps, found.status) == (30, "exception")
    assert found.verdict is not None
    assert (found.strategy, found.precision, found.global_batch) == ("ddp", "fp32", 64)
    assert found.created_unix_ns == ORIGIN_UNIX_NS
    assert found.gpu_hours is None
    assert (found.step_error_s or 0) > 0
    assert (found.step_error_freedom, found.step_noise) == (2, 0.01)


def test_the_hours_of_a_run(tmp_path: Path) -> None:
    """Two ranks of one machine in attempt 0, for 2 s; two machines in attempt 1, for 3 s."""
    steady = [step(n, compute_ms=6, data_ms=3, other_ms=1) for n in range(100)]
    for attempt, seconds, nodes in ((0, 2, "aa"), (1, 3, "ab")):
        for rank in range(2):
            head = replace(header(rank, 2, attempt, nodes[rank], "A100"), origin_unix_ns=ORIGIN_UNIX_NS)
            write_rank(tmp_path, head, steady, records=[End("ok", 0, seconds * 1000 * MS)])
    found = summary_of(tmp_path)
    assert found.wall_s == pytest.approx(5)
    assert found.rank_hours == found.gpu_hours == pytest.approx(2 * 5 / 3600)
    assert found.machine_hours == pytest.approx((1 * 2 + 2 * 3) / 3600)
    assert found.class_rank_hours["data"] == pytest.approx(4 * 100 * 3e-3 / 3600)  # 100 steps of four ranks
    assert found.classes_s["data"] == pytest.approx(3e-3)
    assert sum(found.class_rank_hours[name] or 0 for name in CLASSES) == pytest.approx(4 * 100 * 10e-3 / 3600)


@pytest.mark.parametrize(
    ("ends", "status"),
    [
        (("ok", "ok"), "ok"),
        (("stopped", "stopped"), "stopped"),
        ((None, "exception"), "exception"),
        (("ok", None), "torn"),
        ((None, None), "torn"),
    ],
)
def test_how_a_run_ended(ends: tuple[str | None, str | None], status: str, tmp_path: Path) -> None:
    for rank, end in enumerate(ends):
        write_rank(tmp_path, header(rank, 2), [step(0)], records=[End(end, 0, MS)] if end else [])
    assert summary_of(tmp_path).status == status


def test_not_measured_is_none(tmp_path: Path) -> None:
    write_rank(tmp_path / "run", header(), [step(n, data_ms=None) for n in range(40)])
    found = summary_of(tmp_path / "run")
    assert found.classes_s["data"] is found.class_rank_hours["data"] is None
    assert found.classes_s["comm"] == 0
    write_rank(tmp_path / "empty", header(), [])
    nothing = summary_of(tmp_path / "empty")
    assert (nothing.step_s, nothing.verdict, nothing.class_rank_hours["compute"]) == (None, None, None)
    assert set(nothing.class_rank_hours) == set(TIMES) - {"step"}


def test_equal_arguments_have_equal_fingerprints_that_do_not_tell_them(tmp_path: Path) -> None:
    fingerprints = []
    for number, words in enumerate((["train.py", "--lr", "1"], ["other.py", "--lr", "1"], ["train.py", "--lr", "2"])):
        replace(manifest(), argv=words).write(simple_run(tmp_path / str(number)))
        fingerprints.append(summary_of(tmp_path / str(number)).arguments)
    assert fingerprints[0] == fingerprints[1] != fingerprints[2]


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    for directory in (HERE / "two-ranks", write_run(tmp_path / "hostile", NAME)):
        found = summary_of(directory)
        found.write(tmp_path)
        assert decode_summary((tmp_path / SUMMARY_NAME).read_bytes()) == found


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": "many"}, "steps: "),
        ({"wall_s": -1}, "wall_s: "),
        ({"classes_s": {"data": "much"}}, "classes_s"),
        ({"schema": 2}, "written by a newer ddlprof"),
    ],
)
def test_a_damaged_summary_is_refused(change: dict[str, object], message: str) -> None:
    good = asdict(summary_of(HERE / "two-ranks"))
    with pytest.raises(ValueError, match=message):
        decode_summary(json.dumps({**good, **change}).encode())
    for content in (b"[]", b"", b"{" * 100, b"\xff", b" " * (MAX_SUMMARY_BYTES + 1)):
        with pytest.raises(ValueError, match=r"."):
            decode_summary(content)


def test_a_field_of_a_later_version_is_passed_over() -> None:
    good = summary_of(HERE / "two-ranks")
    assert decode_summary(json.dumps({**asdict(good), "colour": "blue"}).encode()) == good


def report(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["ddlprof", "report", *words])
    return main()


def test_the_command_writes_it_only_where_it_is_asked_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = simple_run(tmp_path / "run")
    assert report(monkeypatch, str(directory)) == 0
    assert not (directory / SUMMARY_NAME).exists()
    assert report(monkeypatch, str(directory), "--save-summary") == 0
    found = decode_summary((directory / SUMMARY_NAME).read_bytes())
    assert found.file_bytes == sum(path.stat().st_size for path in (directory / "attempt-0").iterdir())


def test_a_report_is_shown_where_its_summary_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = simple_run(tmp_path / "run")

    def full(*_: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(RunSummary, "write", full)
    assert report(monkeypatch, str(directory), "--save-summary") == 0
    out, err = capsys.readouterr()
    assert "Verdict" in out
    assert err == f"ddlprof: {directory}: summary.json cannot be written: No space left on device\n"


def test_parts_of_a_run_have_no_place_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in range(2):
        write_rank(tmp_path / f"part-{rank}", header(rank, 2), [step(0)])
    assert report(monkeypatch, str(tmp_path / "part-0"), str(tmp_path / "part-1"), "--save-summary") == 2
    assert capsys.readouterr().err == "ddlprof: --save-summary takes one run directory of this machine\n"
