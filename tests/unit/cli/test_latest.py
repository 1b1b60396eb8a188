"""What `last` means, and what commands do without a run."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import pytest

from ddlprof.base.errors import UserError
from ddlprof.cli.latest import run_named
from ddlprof.cli.parser import call
from ddlprof.report.run.columns import RUN_COLUMNS
from tests.golden.runs import header, manifest, step, write_rank

RUNS = Path("ddlprof-runs")
NAMES = ["b-20260101-120000", "a-20260102-090000", "a-20260102-090000-2", "a-20260102-090000-10"]


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that began in the order of their names, touched in another."""
    monkeypatch.chdir(tmp_path)
    for name in reversed(NAMES):
        write_rank(RUNS / name, header(), [step(number) for number in range(20)])
    (RUNS / "notes").mkdir()
    (RUNS / "z-20270101-000000").touch()


def test_the_latest_is_the_one_that_began_last(capsys: pytest.CaptureFixture[str]) -> None:
    assert [run_named(text) for text in ("last", "last~0", "last~1", "last~3")] == [
        str(RUNS / NAMES[-1]), str(RUNS / NAMES[-1]), str(RUNS / NAMES[-2]), str(RUNS / NAMES[0]),
    ]  # fmt: skip
    assert f"last~1 is {RUNS / NAMES[-2]}" in capsys.readouterr().err


def test_a_run_that_was_named_began_when_its_manifest_says(capsys: pytest.CaptureFixture[str]) -> None:
    for name, year in (("named", 2027), ("early", 2025)):
        (RUNS / name).mkdir()
        manifest().write(RUNS / name)
        path = RUNS / name / "manifest.json"
        created_ns = int(datetime(year, 6, 1).timestamp() * 1e9)
        path.write_text(json.dumps({**json.loads(path.read_text()), "created_unix_ns": created_ns}))
    for name, text in (("words", "{"), ("list", "[]"), ("none", "{}"), ("far", '{"created_unix_ns": 1e99}')):
        (RUNS / name).mkdir()
        (RUNS / name / "manifest.json").write_text(text)
    assert [run_named(text) for text in ("last", "last~1", "last~5")] == [
        str(RUNS / name) for name in ("named", NAMES[-1], "early")
    ]


def test_a_path_is_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "last").mkdir()
    texts = ["last", "lasts", "last~", "s3://bucket/last"]
    assert list(map(run_named, texts)) == texts
    assert capsys.readouterr().err == ""


def test_there_are_not_as_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="last~4: only 4 below ddlprof-runs/; name a run directory"):
        run_named("last~4")
    with pytest.raises(UserError, match="empty, as of a variable that is not set"):
        run_named("")
    monkeypatch.chdir(RUNS)
    with pytest.raises(UserError, match="no run is below ddlprof-runs/"):
        run_named("last")


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["report"], NAMES[-1:]),
        (["report", "last~1"], NAMES[-2:-1]),
        (["export", "-o", "tables"], NAMES[-1:]),
        (["watch", "--once"], NAMES[-1:]),
        (["compare"], NAMES[-2:]),
        (["compare", "last~3", "vs", "last"], [NAMES[0], NAMES[-1]]),
        (["predict", "--instance", "p4d.24xlarge"], NAMES[-1:]),
        (["recommend", "--budget", "12 hours", "--samples", "300k"], NAMES[-1:]),
    ],
)
def test_commands_say_which_run_they_took(
    words: list[str], meant: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        call(words)
    except UserError:
        assert words[0] in ("predict", "recommend")  # these runs have no model
    told = [line for line in capsys.readouterr().err.splitlines() if " is ddlprof-runs" in line]
    assert [line.rpartition("/")[2] for line in told] == meant


def test_columns_need_no_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["export", "--columns"]) == 0
    out = capsys.readouterr().out
    assert [line for line in out.splitlines() if not line.startswith(" ")] == [f"{name}.csv" for name in RUN_COLUMNS]
    assert all(f"  {name} " in out for columns in RUN_COLUMNS.values() for name in columns)


def test_the_page_is_opened(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)  # and nothing was opened
    assert call(["report", "--open"]) == 0
    assert call(["report", "--open", "-o", "here.html", "-o", "here.json"]) == 0
    pages = [RUNS / NAMES[-1] / "page.html", Path("here.html")]
    assert opened == [page.absolute().as_uri() for page in pages]
    assert all(page.read_text().startswith("<!DOCTYPE html>") for page in pages)
    assert "no browser was found: open here.html in one" in capsys.readouterr().err
    with pytest.raises(UserError, match=r"-o page\.html"):
        call(["report", "s3://bucket/run", "--open"])
