"""`ddlprof cluster advise` as a user types it."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from ddlprof.extensions.cluster.report.advice.formats import COLUMNS
from ddlprof.recommender import Measurement
from tests.golden.runs import HERE
from tests.unit.cli.commands import BERT, ddlprof, write_workload

GOLDEN = str(HERE / "two-ranks")
RACKS = ["--between-racks-gbps", "5"]


def ran(placement: tuple[int, ...], step_s: float) -> Measurement:
    return Measurement("g4dn.12xlarge", placement=placement, batch_per_gpu=12, step_s=step_s)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the runs `packed` and `spread` of a job, and `two` that was predicted only."""
    monkeypatch.chdir(tmp_path)
    write_workload(replace(BERT, measurements=[ran((4,), 0.6)]), Path("packed"))
    write_workload(replace(BERT, measurements=[ran((2, 2), 0.9)]), Path("spread"))
    write_workload(replace(BERT, name="two"), Path("two"))
    return tmp_path


def advised(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert ddlprof(monkeypatch, "cluster", "advise", *words) == 0
    out, err = capsys.readouterr()
    assert err == ("ddlprof: wrote job.yaml\n" if "-o" in words else "")
    return out


def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert ddlprof(monkeypatch, "cluster", "advise", *words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err


def test_runs_of_one_job_measure_what_it_loses(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = advised(monkeypatch, capsys, "packed", "spread", "--remaining", "10h")
    assert "ddlprof  cluster advise 1 job\n" in out
    assert "Job      bert-base · 4 GPUs, at best on 1 machine (4)" in out
    assert "machines of a rack  2,2   1.50x measured  one machine        5 h 0 min" in out
    assert "Unknown  several racks: the network between racks is not known: give --between-racks-gbps" in out


def test_each_job_has_its_own_rest_and_the_costliest_comes_first(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["packed", "spread", "two", "--gpus", "4", "--instance", "g4dn.12xlarge"]
    found = json.loads(advised(monkeypatch, capsys, *asked, "--remaining", "two=20h,1h", "--format", "json"))
    assert [(job["job"], job["remaining_s"]) for job in found["jobs"]] == [("bert-base", 3600), ("two", 72_000)]
    for words, first, hours in (("bert-base=10h,two=1m", "bert-base", "20"), ("bert-base=1m,two=20h", "two", "")):
        out = advised(monkeypatch, capsys, *asked, "--remaining", words)
        order = out.split("PLACE CLOSER FIRST")[1].splitlines()[1:]
        assert "SCALE FIRST" not in out  # both would be slower
        assert order[0].startswith(first)
        assert hours in order[0]  # 4 GPUs, 10 hours, half as long again
        assert len(order) == 2
    assert "PLACE" not in advised(monkeypatch, capsys, "packed", "spread", "--remaining", "1h")
    says = refused(monkeypatch, capsys, *asked, "--remaining", "bort=1h")
    assert "no job is called bort; there are bert-base, two" in says


def test_a_folder_stands_for_the_runs_in_it(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        shutil.copytree(GOLDEN, here / "runs" / name)
    machine = ["--gpu", "V100", "--network-gbps", "10", "--gpus", "8"]
    one_by_one = advised(monkeypatch, capsys, "runs/a", "runs/b", *machine)
    assert advised(monkeypatch, capsys, "runs", *machine) == one_by_one


def test_what_was_not_measured_is_predicted(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = advised(monkeypatch, capsys, "packed", "two", "--gpus", "8", *RACKS)
    assert "2 jobs" in out
    assert out.count("several racks  4,4") == 2
    assert out.count("measured  one rack") == 0
    assert out.count("%] of the rest of the run") == 2
    assert "Rests on communication" in out


def test_the_same_for_programs(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["packed", "spread", "two", "--gpus", "4", *RACKS]
    found = json.loads(advised(monkeypatch, capsys, *asked, "--remaining", "10h", "--format", "json"))
    measured, predicted = found["jobs"]
    assert (measured["job"], measured["gpus"], measured["closest"]) == ("bert-base", 4, [4])
    assert measured["remaining_s"] == 36_000
    machines, racks = measured["spread"]
    assert (machines["spread_over"], machines["placement"], racks["spread_over"]) == ("machines", [2, 2], "racks")
    assert (machines["slowdown"], machines["slowdown_low"]) == (pytest.approx(1.5), None)
    assert machines["wait_s"] == pytest.approx(18_000)
    assert machines["wait_share"] == pytest.approx(0.5)
    assert racks["slowdown_low"] <= racks["slowdown"] <= racks["slowdown_high"]
    assert predicted["basis"]

    rows = list(csv.DictReader(io.StringIO(advised(monkeypatch, capsys, *asked, "--format", "csv"))))
    assert [(row["job"], row["spread_over"]) for row in rows] == [
        (job, over) for job in ("bert-base", "two") for over in ("machines", "racks")
    ]
    assert (tuple(rows[0]), rows[0]["placement"], rows[0]["wait_s"]) == (COLUMNS, "2,2", "")
    assert float(rows[0]["wait_share"]) == pytest.approx(0.5)


def test_hints_for_schedulers(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["two", "--gpus", "8", "--between-racks-gbps", "0.5", "--remaining", "10h"]
    script = advised(monkeypatch, capsys, *asked, "--format", "slurm")
    assert "#SBATCH --nodes=2\n#SBATCH --gpus-per-node=4\n# a wait for one rack pays up to " in script
    assert re.search(r"\n#SBATCH --switches=1@\d-\d\d:00:00\n", script)
    assert advised(monkeypatch, capsys, *asked, "--format", "volcano", "--rack-tier", "2", "-o", "job.yaml") == ""
    job = yaml.safe_load(Path("job.yaml").read_text())
    assert job["spec"]["networkTopology"] == {"mode": "hard", "highestTierAllowed": 2}
    for engine, word in (("kueue", "podset-required-topology"), ("kubernetes", "requiredDuringScheduling")):
        assert word in advised(monkeypatch, capsys, *asked, "--emit", engine)


def test_one_gpu_has_nothing_to_spread(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "one GPU: there is nothing to spread" in advised(monkeypatch, capsys, "two")
    script = advised(monkeypatch, capsys, "two", "--format", "slurm", "--remaining", "1h")
    assert script.endswith("# two\n#SBATCH --nodes=1\n#SBATCH --gpus-per-node=1\n")


def test_a_run_on_processors_tells_nothing_of_gpus(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = advised(monkeypatch, capsys, GOLDEN, "--batch", "4")
    assert "Unknown  machines of a rack: target without a GPU" in out
    there = ["--gpu", "V100", "--network-gbps", "25", "--gpus", "16", "--gpus-per-node", "8", *RACKS]
    assert "several racks  8,8" in advised(monkeypatch, capsys, GOLDEN, "--batch", "4", *there)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nothing"], "no such run directory"),
        (["two", "--format", "slurm"], "hints need --remaining TIME"),
        (["two", "--remaining", "soon"], "--remaining takes a time"),
        (["two", "--instance", "g4dn.12xlarge", "--gpu", "T4"], "--instance tells GPU and links"),
        (["two", "--network-gbps", "10"], "give its --gpu too"),
        (["two", "--gpu", "T1000000"], "T1000000"),
        (["two", "--instance", "none.such"], "none.such"),
        (["two", "--gpus", "0"], "--gpus"),
        (["two", "--between-racks-gbps", "0"], "--between-racks-gbps"),
        (["two", "--history", "nothing.csv"], "nothing.csv"),
        (["two", "--history", "fifo"], "FIFO"),
        (["two", "--format", "pbs", "--remaining", "1h"], "pbs"),
        (["two", "--gpus", "4", "-o", "missing/job.yaml"], "missing/job.yaml: cannot be written"),
    ],
)
def test_bad_input_is_one_line(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    os.mkfifo(here / "fifo")
    assert says in refused(monkeypatch, capsys, *words)
