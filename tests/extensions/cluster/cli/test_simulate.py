"""`ddlprof cluster simulate`: what it takes, what it refuses in one line, and what it writes."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path

import pytest

from ddlprof.base.errors import UserError
from ddlprof.extensions.cluster.cli import simulate as cluster_simulate
from ddlprof.extensions.cluster.report.csv import JOB_COLUMNS, SUMMARY_COLUMNS, USE_COLUMNS
from tests.unit.cli.commands import ddlprof

EXAMPLE = str(Path(__file__).parents[4] / "examples/jobs.csv")
HEAD = "trace,job_id,submit_s,gpus,model,batch,duration_s,iterations,status,extra\n"

pytestmark = pytest.mark.usefixtures("alone")


def simulate(
    monkeypatch: pytest.MonkeyPatch, *words: str, trace: str = EXAMPLE, cluster: str = "2x4", policy: str = "fifo,srtf"
) -> int:
    return ddlprof(
        monkeypatch, "cluster", "simulate", "--trace", trace, "--cluster", cluster, "--policy", policy, *words
    )


def test_files_say_the_same_as_standard_output(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["--load", "0.5,0.9", "--seed", "0-1", "--predictable", "0.5", "--pred-error", "0.25"]
    assert simulate(monkeypatch, *words, "-o", "-", "-o", "x.json", "-o", "out/csv/", "-o", "x.html") == 0
    capsys.readouterr()
    assert simulate(monkeypatch, *words, "--format", "json") == 0
    shown = capsys.readouterr().out
    assert shown == (tmp_path / "x.json").read_text(encoding="utf-8")
    data = json.loads(shown)
    assert data["schema"] == 1
    assert [(block["load"], len(block["policies"])) for block in data["blocks"]] == [(0.5, 2), (0.9, 2)]
    assert len(data["cases"]) == 8
    for name, columns, rows in (
        ("summary", SUMMARY_COLUMNS, 8), ("jobs", JOB_COLUMNS, 8 * 20), ("use", USE_COLUMNS, 8 * 200)
    ):  # fmt: skip
        with (tmp_path / f"out/csv/{name}.csv").open(encoding="utf-8", newline="") as file:
            table = list(csv.reader(file))
        assert tuple(table[0]) == columns
        assert len(table) == rows + 1
    assert (tmp_path / "x.html").read_text(encoding="utf-8").endswith("</html>\n")
    assert not list(tmp_path.rglob("*.tmp"))


def test_gpus_have_their_names_in_the_catalogue(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate(monkeypatch, "--format", "json", cluster="2x4:Tesla V100,1x8:p100") == 0
    assert json.loads(capsys.readouterr().out)["question"]["gpu_models"] == ["P100-PCIE-16GB", "V100-SXM2-16GB"]


def test_what_was_left_out_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--too-large", "drop", "--jobs-limit", "10", "--seed", "0-1"]
    assert simulate(monkeypatch, *words, "--format", "json", cluster="1x4") == 0
    question = json.loads(capsys.readouterr().out)["question"]
    assert question["jobs"] == 9
    assert {"only the first 10 of 20 jobs", "1 job asked for more GPUs than there are: left out"} <= {
        *question["notes"]
    }
    assert any("all seeds are alike" in note for note in question["notes"])
    assert simulate(monkeypatch, "--too-large", "cap", "--format", "json", cluster="1x4") == 0
    question = json.loads(capsys.readouterr().out)["question"]
    assert question["jobs"] == 20
    assert any("2 jobs asked for more GPUs than there are: given all of them" in note for note in question["notes"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--seed", "1-0"], "--seed '1-0': give whole numbers or ranges"),
        (["--seed", "x"], "--seed 'x'"),
        (["--seed", "0-99999999"], "--seed '0-99999999'"),
        (["--seed", "0-9999", "--load", "1,2,3,4,5,6"], "120,000 simulations are asked for"),
        (["--load", "0"], "--load '0': give numbers from 0.001 to 1000"),
        (["--load", "nan"], "--load 'nan'"),
        (["--load", "1,inf"], "--load '1,inf'"),
        (["--predictable", "1.5"], "--predictable '1.5': give numbers from 0 to 1"),
        (["--predictable", ","], "--predictable ','"),
        (["--pred-error", "nan"], "--pred-error nan"),
        (["--pred-error", "-1"], "--pred-error -1"),
        (["--restart", "-1"], "--restart -1: give"),
        (["--restart", "nan"], "--restart nan"),
        (["--jobs-limit", "0"], "'--jobs-limit'"),
        (["--workers", "0"], "'--workers'"),
        (["--too-large", "keep"], "'--too-large'"),
        (["--arrivals", "soon"], "'--arrivals'"),
        (["-o", "no/x.json"], "no/x.json: cannot be written: there is no folder no"),
        (["-o", "no/x.html"], "no/x.html: cannot be written: there is no folder no"),
        (["-o", "taken/csv/"], "taken/csv: cannot be made"),
        (["--penalties", "none.json"], "none.json"),
    ],
    ids=" ".join,
)
def test_nonsense_is_refused_in_one_line(
    words: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("taken").write_text("")
    assert simulate(monkeypatch, *words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("ddlprof: ")
    assert said in err


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ({"cluster": "2x"}, "--cluster 2x: expected MACHINESxGPUS"),
        ({"cluster": "2x4:V10O"}, "unknown GPU 'V10O'; closest: "),
        ({"cluster": "1x4"}, "asks for 8 GPUs, and the cluster has 4"),
        ({"policy": "fifo,lax"}, "--policy lax: unknown; there are "),
        ({"policy": "fifo;fast=1"}, "fifo has no parameter 'fast'"),
        ({"policy": ","}, "--policy: give at least one"),
        ({"policy": "os:path"}, "os:path: is no policy"),
        ({"policy": "nowhere:Policy"}, "--policy nowhere:Policy: ModuleNotFoundError"),
        ({"policy": "nowhere:"}, "--policy nowhere:: unknown"),
        ({"trace": "none.csv"}, "none.csv"),
        ({"trace": "empty.csv"}, "empty.csv: has no jobs"),
        ({"trace": "two.csv"}, "two.csv: has 2 traces; pick one as FILE:NAME: a, b"),
        ({"trace": "two.csv:c"}, "two.csv: has no trace c; it has a, b"),
        ({"trace": "negative.csv"}, "negative.csv, line 2: submit_s"),
        ({"trace": "."}, "."),
    ],
    ids=str,
)
def test_bad_input_is_refused_in_one_line(
    what: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "empty.csv").write_text(HEAD)
    (tmp_path / "two.csv").write_text(f"{HEAD}a,0,0,1,,,60,,,\nb,0,0,1,,,60,,,\n")
    (tmp_path / "negative.csv").write_text(f"{HEAD}a,0,-1,1,,,60,,,\n")
    assert simulate(monkeypatch, **what) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert said in err


def test_a_pipe_is_no_trace(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo("pipe.csv")
    assert simulate(monkeypatch, trace="pipe.csv") == 2
    assert "pipe.csv" in capsys.readouterr().err


def test_a_file_that_cannot_be_written_costs_no_result(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "out/use.csv").mkdir(parents=True)
    assert simulate(monkeypatch, "-o", "-", "-o", "out/") == 2
    out, err = capsys.readouterr()
    assert "srtf has the shortest" in out
    assert err.count("\n") == 1
    assert "out/use.csv: cannot be written" in err
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["jobs.csv", "summary.csv", "use.csv"]


def test_jobs_that_cannot_be_written_leave_nothing_half_done(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "out/jobs.csv").mkdir(parents=True)
    assert simulate(monkeypatch, "-o", "out/") == 2
    assert "out/jobs.csv: cannot be written" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["jobs.csv"]


def test_a_link_stays_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "link.json").symlink_to("real.json")
    assert simulate(monkeypatch, "-o", "link.json") == 0
    assert (tmp_path / "link.json").is_symlink()
    assert json.loads((tmp_path / "real.json").read_text(encoding="utf-8"))["schema"] == 1


def test_lists_of_numbers() -> None:
    assert cluster_simulate.seeds("0-2, 7,1") == [0, 1, 2, 7]
    assert cluster_simulate.numbers(".5,0.9,.5", "--load", 0, 1) == [0.5, 0.9]
    assert cluster_simulate.names("a, b,a;x=1,") == ["a", "b", "a;x=1"]
    with pytest.raises(UserError, match=r"--x 'a': give numbers from 0 to 1, as in"):
        cluster_simulate.numbers("a", "--x", 0, 1)
