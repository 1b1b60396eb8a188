"""`ddlprof report` and `ddlprof export` as a user types them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ddlprof.cli.app import main
from ddlprof.launch.terminal import CARD_WORDS
from tests.golden.runs import HERE, header, simple_run, step, write_rank

GOLDEN = str(HERE / "two-ranks")


def ddlprof(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["ddlprof", *arguments])
    return main()


def test_parts_of_a_run_are_put_together(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    parts = [str(tmp_path / name) for name in ("part-0", "part-1")]
    for rank, part in enumerate(parts):
        write_rank(Path(part), header(rank, 2), [step(n) for n in range(9)])
    assert ddlprof(monkeypatch, "report", *parts) == 0
    out = capsys.readouterr().out
    assert "0 of 2 ranks complete" in out
    assert f"ddlprof report {parts[0]} {parts[1]} --format html" in out
    assert ddlprof(monkeypatch, "export", *parts, "--out", str(tmp_path / "csv")) == 0
    ranks = (tmp_path / "csv" / "ranks.csv").read_text().splitlines()
    assert len(ranks) == 3


def test_report_in_both_formats(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert ddlprof(monkeypatch, "report", GOLDEN, "--format", "table,json") == 0
    table, _, rest = capsys.readouterr().out.partition("\n\n")
    assert table.startswith("ddlprof")
    assert json.loads(rest)["name"] == "train"


def test_report_into_a_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert ddlprof(monkeypatch, "report", GOLDEN, "--format", "json", "-o", str(tmp_path / "r.json")) == 0
    assert capsys.readouterr().out == ""
    assert json.loads((tmp_path / "r.json").read_text())["world_size"] == 2


def test_export(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert ddlprof(monkeypatch, "export", GOLDEN, "--format", "csv", "--out", str(tmp_path / "csv")) == 0
    names = {"steps.csv", "collectives.csv", "ranks.csv", "job.csv", "rates.csv", "summary.csv"}
    assert {Path(line).name for line in capsys.readouterr().err.splitlines()} == names
    assert {p.name for p in (tmp_path / "csv").iterdir()} == names


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["report", "nowhere"], "nowhere: no such run directory; make one with: ddlprof run SCRIPT"),
        (["export", "nowhere", "--out", "x"], "nowhere: no such run directory; make one with: ddlprof run SCRIPT"),
        (["report", GOLDEN, "--format", "pdf"], "unknown format 'pdf'; known: table, json, html, trace (CSV: ddlprof"),
        (["export", GOLDEN, "--format", "xlsx", "--out", "x"], "unknown format 'xlsx'; known: csv"),
        (["report", GOLDEN, "--format", "table,json", "-o", "x"], "-o takes one format: give it once for each"),
        (["report", GOLDEN, "-o", "no/such/file"], "no/such/file: cannot be written: there is no folder no/such"),
        (["export", GOLDEN], "--out"),
        (["report"], "last: no run is below ddlprof-runs"),
    ],
)
def test_errors_are_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert ddlprof(monkeypatch, *arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("ddlprof: ")
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("command", [["report", "RUN"], ["export", "RUN", "--out", "csv"]], ids=["report", "export"])
def test_reports_import_neither_torch_nor_pandas(tmp_path: Path, command: list[str]) -> None:
    run = simple_run(tmp_path)
    arguments = [str(run) if word == "RUN" else word for word in command]
    code = (
        "import sys; from ddlprof.cli.app import main; sys.argv = ['ddlprof', *sys.argv[1:]]; code = main();"
        "heavy = {'torch', 'pandas', 'scipy', 'sklearn', 'boto3', 'fsspec'} & set(sys.modules);"
        "sys.exit(code or str(heavy or '') or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stdout if command[0] == "report" else "wrote csv/steps.csv" in done.stderr


@pytest.mark.parametrize(
    ("limit", "says"), [("CARD_BYTES", "the files of the ranks have 0."), ("CARD_READING_S", "read in")]
)
def test_a_card_that_takes_long_is_a_line(
    limit: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from ddlprof.cli import fast_path

    run = tmp_path / "two ranks"
    shutil.copytree(HERE / "two-ranks", run)
    monkeypatch.setattr(fast_path, limit, -1)
    monkeypatch.setattr(sys, "argv", ["ddlprof", *CARD_WORDS, str(run)])
    assert main() == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    [line] = shown.err.splitlines()
    assert line.startswith("ddlprof: no card: ")
    assert says in line
    assert line.endswith(f"; show it with: ddlprof report '{run}'")
