"""`ddlprof recommend` and `ddlprof predict` as a user types them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ddlprof.base.errors import UserError
from ddlprof.base.units import parse_duration
from ddlprof.cli.options import amount
from ddlprof.model.manifest import Manifest
from ddlprof.recommender import Measurement, Workload
from tests.golden.runs import header, manifest, simple_run, write_rank
from tests.unit.cli.commands import BERT, WORK, ddlprof, rows, write_workload

pytestmark = pytest.mark.usefixtures("alone")


def test_a_plan_for_a_measured_job(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], bert: str
) -> None:
    assert ddlprof(monkeypatch, "recommend", bert, *WORK, "--top", "3", "-o", "-", "-o", "r.csv", "-o", "r.json") == 0
    out, err = capsys.readouterr()
    assert out.startswith("ddlprof  recommend bert-base · 1,000,000 samples in 12 h\n")
    assert err == "ddlprof: wrote r.csv\nddlprof: wrote r.json\n"
    plans = rows("r.csv")
    accepted = [plan for plan in plans if not plan["reason"]]
    costs = [round(float(plan["cost_usd"]), 2) for plan in accepted]
    assert costs == sorted(costs)
    assert all(float(plan["time_high_h"]) <= 12 for plan in accepted)
    assert {plan["region"] for plan in plans} == {"us-east-1"}
    assert len(json.loads(Path("r.json").read_text(encoding="utf-8"))["plans"]) == len(plans)
    for plan in accepted[:50]:
        classes = ("compute_s", "data_s", "h2d_s", "interconnect_s", "network_s", "other_s")
        assert sum(float(plan[name]) for name in classes) == pytest.approx(float(plan["step_s"]), rel=1e-6)


def test_a_run_on_a_cpu_has_an_answer_with_wide_intervals(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run = str(simple_run(tmp_path / "run", data_ms=0, other_ms=0))
    assert ddlprof(monkeypatch, "recommend", run, "--budget", "30d", "--epochs", "3", "-o", "-", "-o", "r.csv") == 0
    best = rows("r.csv")[0]
    assert int(best["steps"]) == -(-3 * 1797 // int(best["global_batch"]))
    assert float(best["step_high_s"]) > 1.2 * float(best["step_s"])


def test_steps_count_in_updates_of_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run = str(simple_run(tmp_path / "run"))
    options = ["--budget", "30d", "--steps", "100", "--keep-global-batch", "-o", "-", "-o", "r.csv"]
    assert ddlprof(monkeypatch, "recommend", run, *options) == 0
    assert {row["steps"] for row in rows("r.csv") if not row["reason"]} == {"100"}
    assert {row["global_batch"] for row in rows("r.csv") if not row["reason"]} == {"32"}


def test_an_impossible_budget_has_its_own_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], bert: str
) -> None:
    options = ["--budget", "10m", "--samples", "1e9", "--emit", "skypilot"]
    assert ddlprof(monkeypatch, "recommend", bert, *options) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "no plan meets 10 min. Soonest done is" in out
    assert not list(Path().glob("*.yaml"))


def test_runs_on_other_placements_are_put_together(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], bert: str, tmp_path: Path
) -> None:
    wide = ["predict", "--instance", "g4dn.12xlarge", "--placement", "4,4", "-o", "-", "-o", "p.json"]
    assert ddlprof(monkeypatch, *wide, bert) == 0
    once = json.loads(Path("p.json").read_text(encoding="utf-8"))["estimate"]
    measured = Measurement("g4dn.12xlarge", placement=(4, 4), batch_per_gpu=12, step_s=2.0, exposed_comm_s=1.4)
    write_workload(replace(BERT, measurements=[measured]), tmp_path / "two.json")
    assert ddlprof(monkeypatch, *wide, bert, "two.json") == 0
    twice = json.loads(Path("p.json").read_text(encoding="utf-8"))["estimate"]
    assert twice["high_s"] - twice["low_s"] < once["high_s"] - once["low_s"]
    assert twice["step_s"] == pytest.approx(2.0, rel=0.1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["recommend", "nowhere", *WORK], "nowhere: no such run directory; make one with: ddlprof run SCRIPT"),
        (["recommend", "FILE", "--samples", "1"], "Missing option '--budget'"),
        (["recommend", "FILE", "--budget", "0h", "--samples", "1"], "--budget must be more than zero: not '0h'"),
        (["recommend", "FILE", "--budget", "12", "--samples", "1"], "--budget takes a time as in 12h, 90m, 1d or"),
        (["recommend", "FILE", "--budget", "1h"], "exactly one of --steps, --epochs and --samples"),
        (["recommend", "FILE", *WORK, "--steps", "3"], "exactly one of --steps, --epochs and --samples"),
        (["recommend", "FILE", "--budget", "1h", "--samples", "0"], "--samples must be more than zero"),
        (["recommend", "FILE", "--budget", "1h", "--epochs", "1"], "so --epochs cannot be counted: use --samples"),
        (["recommend", "FILE", *WORK, "--instance", "g4dn.12xlarg"], "unknown instance type 'g4dn.12xlarg'"),
        (["recommend", "FILE", *WORK, "--region", "moon-1"], "'moon-1'"),
        (["recommend", "FILE", *WORK, "--region", "eu-west-1", "--instance", "p5.48xlarge"],
         "no price of p5.48xlarge in eu-west-1; there is one in us-east-1"),
        (["recommend", "FILE", *WORK, "--cloud", "nimbus"], "unknown cloud 'nimbus'"),
        (["recommend", "FILE", *WORK, "--pricing", "free"], "unknown pricing 'free'; known: on_demand, spot"),
        (["recommend", "FILE", *WORK, "--batch", "many"], "--batch takes whole numbers above 0, as in 4,4: not 'many'"),
        (["recommend", "FILE", *WORK, "--emit", "pulumi"], "unknown engine 'pulumi' for --emit; known: slurm, kube"),
        (["recommend", "FILE", *WORK, "-o", "no/such/file"], "no/such/file: cannot be written"),
        (["predict", "FILE", "--instance", "g4dn.xlarge", "--placement", "two"], "--placement takes whole numbers"),
        (["predict", "FILE", "--instance", "g4dn.xlarge", "--placement", "2"], "g4dn.xlarge has 1 GPU"),
        (["predict", "FILE", "--instance", "p99", "--placement", "2"], "unknown instance type 'p99'"),
        (["predict", "FILE"], "name 1 to 1000 targets, by --instance TYPE, or --gpu MODEL outside of a cloud"),
        (["predict", "FILE", "--gpu", "T5000"], "unknown GPU 'T5000'"),
        (["predict", "FILE", "--gpu", "T4", "--precision", "bf16"], "no bf16: T4 has none in hardware; choose another"),
        (["predict", "FILE", "--gpu", "T4", "--precision", "fp32,int3"], "precision 'int3' is not known; one of: "),
        (["predict", "FILE", "--gpu", "T4", "--grad-accum", "0"], "Invalid value for '--grad-accum'"),
        (["recommend", "FILE", *WORK, "--optimizer", "adamx"], "optimizer 'adamx' is not known; one of: none, sgd"),
        (["recommend", "FILE", *WORK, "--strategy", "tp"], "strategy 'tp' is not known; one of: ddp, fsdp, zero"),
        (["recommend", "FILE", *WORK, "--discount", "aws=cheap"], "as in aws=30%: not 'aws=cheap'"),
        (["recommend", "FILE", *WORK, "--discount", "aws=0.3"], "--discount takes a cloud or an instance type"),
        (["recommend", "FILE", *WORK, "--discount", "aws=101%"], "as in aws=30%: not 'aws=101%'"),
        (["recommend", "FILE", *WORK, "--discount", "moon=10%"], "unknown instance type 'moon'"),
        (["recommend", "FILE", *WORK, "--prices", "none.csv"], "none.csv: no such file"),
    ],
)  # fmt: skip
def test_errors_are_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    bert: str,
    arguments: list[str],
    message: str,
) -> None:
    assert ddlprof(monkeypatch, *(bert if word == "FILE" else word for word in arguments)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("ddlprof: ")
    assert message in err
    assert err.count("\n") == 1


def test_a_run_without_a_steady_step_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    write_rank(tmp_path / "torn", header(), [], lines=['["s",0,3'])
    manifest().write(tmp_path / "torn")
    assert ddlprof(monkeypatch, "recommend", "torn", *WORK) == 2
    assert capsys.readouterr().err == "ddlprof: torn: no step was measured; see: ddlprof report torn\n"


@pytest.mark.parametrize("command", [["recommend", *WORK], ["predict", "--instance", "p3.2xlarge", "--placement", "1"]])
@pytest.mark.parametrize(
    ("strategy", "says"),
    [
        ("tp", "tensor parallelism (tp)"),
        ("ddp+pp", "pipeline parallelism (ddp+pp)"),
        ("fsdp+cp", "context parallelism (fsdp+cp)"),
        ("3d", "'3d' (3d)"),
    ],
)
def test_a_strategy_that_cannot_be_predicted_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path,
    strategy: str, says: str, command: list[str],
) -> None:  # fmt: skip
    run = simple_run(tmp_path / "run")
    made = Manifest.read(run)
    made.training.strategy, made.training.batch_per_rank = strategy, None  # the batch matters no more
    made.write(run)
    assert ddlprof(monkeypatch, command[0], "run", *command[1:]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"ddlprof: run: a job trained with {says} cannot be predicted")
    assert "ddlprof features MODULE:FACTORY" in err


def without(run: Path, **facts: None) -> Path:
    """The run, as if some facts of the model or the training had not been told."""
    made = Manifest.read(run)
    for name in facts:
        for part in (made.model, made.training):
            if hasattr(part, name):
                setattr(part, name, None)
    made.write(run)
    return run


def test_a_batch_that_was_given_is_that_of_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    without(simple_run(tmp_path / "run"), batch_per_rank=None, global_batch=None)
    budget = ["--budget", "30d", "--samples", "1e6"]
    assert ddlprof(monkeypatch, "recommend", "run", *budget) == 2
    assert "say what it was: one number with --batch" in " ".join(capsys.readouterr().err.split())
    assert ddlprof(monkeypatch, "recommend", "run", *budget, "--batch", "16,32") == 2
    assert ddlprof(monkeypatch, "recommend", "run", *budget, "--batch", "16", "--why") == 0
    assert "batch of the run: 16, as given" in capsys.readouterr().out
    one = ["--instance", "g4dn.xlarge", "--placement", "1"]
    assert ddlprof(monkeypatch, "predict", "run", *one, "--batch", "16") == 0


def test_where_no_gpu_was_measured_the_page_begins_with_that(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], bert: str, tmp_path: Path
) -> None:
    simple_run(tmp_path / "run")
    assert ddlprof(monkeypatch, "recommend", "run", "--budget", "30d", "--samples", "1e6") == 0
    assert capsys.readouterr().out.splitlines()[1] == "         extrapolated: no GPU was measured"
    assert ddlprof(monkeypatch, "recommend", bert, *WORK) == 0
    assert "no GPU was measured" not in capsys.readouterr().out


def test_the_demo_asks_a_question_whose_answers_differ_and_ends_with_the_answer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    project = Path(__file__).parents[3]
    recipe = (project / "Makefile").read_text(encoding="utf-8").partition("\ndemo:")[2].partition("\n\n")[0]
    *_, question, out, _, last = (line.strip() for line in recipe.splitlines())
    assert (last, out) == ("@$(BIN)/python -m scripts.demo_answer $(DEMO)", "-o - -o $(DEMO)/plans.json")
    program, command, model, *options = question.rstrip("\\").split()
    assert (program, command) == ("$(BIN)/ddlprof", "recommend")
    assert ddlprof(monkeypatch, "recommend", str(project / model), *options, "-o", "-", "-o", "plans.json") == 0
    rented = [plan for plan in json.loads(Path("plans.json").read_text())["plans"] if not plan["reason"]]
    cheapest = {(plan["instance_type"], plan["nodes"]): plan for plan in reversed(rented)}  # as the table shows them
    plans = sorted(cheapest.values(), key=lambda plan: plan["cost_usd"])[:5]
    assert len({plan["instance_type"] for plan in plans}) >= 4
    assert max(plan["time_h"] for plan in plans) > 4 * min(plan["time_h"] for plan in plans)


def test_runs_of_two_jobs_are_not_mixed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], bert: str, tmp_path: Path
) -> None:
    write_workload(Workload("other", layers=3), tmp_path / "other.json")
    assert ddlprof(monkeypatch, "recommend", bert, "other.json", *WORK) == 2
    assert capsys.readouterr().err == "ddlprof: other.json is not the job of bert.json: it has layers 3, not 76\n"


def test_no_torch_and_no_pandas(bert: str) -> None:
    code = (
        "import sys; from ddlprof.cli.app import main; sys.argv = ['ddlprof', *sys.argv[1:]]; code = main();"
        "heavy = {'torch', 'pandas', 'sklearn', 'boto3'} & set(sys.modules); sys.exit(code or str(heavy or '') or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code, "recommend", bert, *WORK], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("12h", 43_200),
        ("90m", 5400),
        ("1d", 86_400),
        ("2h30m", 9000),
        ("1.5 H", 5400),
        ("45s", 45),
        ("5min", 300),
        ("12 hours", 43_200),
        ("2w", 1_209_600),
        ("1 day 30 minutes", 88_200),
        ("1 hr", 3600),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text, "--budget") == seconds


@pytest.mark.parametrize(
    ("text", "number"),
    [("1e8", 1e8), ("300k", 3e5), ("1.2M", 1.2e6), ("2b", 2e9), ("300,000", 3e5), ("1_000_000", 1e6), ("12", 12)],
)
def test_amounts(text: str, number: float) -> None:
    assert amount(text) == number


@pytest.mark.parametrize("text", ["", "k", "3,00", "12 k m", "1e"])
def test_amounts_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"give a number, as in 1e8, 300k or 1\.2M"):
        amount(text)


@pytest.mark.parametrize("text", ["", "h", "12", "-3h", "1h x", "3 months", "1e3h"])
def test_durations_that_are_none(text: str) -> None:
    with pytest.raises(UserError, match="--budget takes a time"):
        parse_duration(text, "--budget")


def test_what_is_neither_a_run_nor_a_file(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo("pipe")
    for name, why in (("pipe", "is a FIFO, not a regular file"), ("a" * 300, "cannot be read: File name too long")):
        assert ddlprof(monkeypatch, "recommend", name, *WORK) == 2
        assert f"{name}: {why}" in capsys.readouterr().err


def test_numbers_that_are_too_many_or_too_long(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], bert: str
) -> None:
    predict = ["predict", bert, "--instance", "g4dn.12xlarge", "--placement"]
    for placement, why in (("4," * 20_000, "10,000 numbers at most, not 20,000"), ("9" * 5000, "takes whole numbers")):
        assert ddlprof(monkeypatch, *predict, placement) == 2
        err = capsys.readouterr().err
        assert why in err
        assert len(err) < 200
    assert ddlprof(monkeypatch, "recommend", bert, *WORK, "--max-nodes", "100000") == 2
    assert "the number of nodes: a whole number from 1 to 1000 is expected, not 100000" in capsys.readouterr().err


def test_whole_machines_by_their_number(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], bert: str
) -> None:
    where = ["--instance", "g4dn.12xlarge", "--nodes", "16"]
    assert ddlprof(monkeypatch, "predict", bert, *where, "-o", "p.json") == 0
    found = json.loads(Path("p.json").read_text(encoding="utf-8"))
    assert found["target"]["placement"] == [4] * 16
    assert found["samples_per_s"] == pytest.approx(12 * 64 / found["estimate"]["step_s"])
    assert (found["tokens_per_s"], found["mfu"]) == (None, None)
    assert ddlprof(monkeypatch, "recommend", bert, *WORK, *where, "-o", "r.csv") in (0, 1)
    assert {row["nodes"] for row in rows("r.csv")} == {"16"}
    for words, says in (
        (["predict", bert, *where, "--placement", "4"], "--placement or --nodes, not both"),
        (["predict", bert, "--gpu", "T4", "--nodes", "2"], "with --gpu, give --placement"),
        (["recommend", bert, *WORK, "--nodes", "2"], "--nodes takes --instance beside it"),
    ):
        capsys.readouterr()
        assert ddlprof(monkeypatch, *words) == 2
        assert says in capsys.readouterr().err


def test_one_target_has_its_tokens_a_second_and_its_mfu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, bert: str
) -> None:
    write_workload(replace(BERT, flops_per_sample=2e11, tokens_per_sample=384), tmp_path / "text.json")
    asked = ["predict", "text.json", "--instance", "g4dn.12xlarge", "--placement", "4"]
    assert ddlprof(monkeypatch, *asked, "-o", "-", "-o", "p.json") == 0
    found = json.loads(Path("p.json").read_text(encoding="utf-8"))
    step_s = found["estimate"]["step_s"]
    assert found["tokens_per_s"] == pytest.approx(12 * 4 * 384 / step_s)
    assert found["mfu"] == pytest.approx(2e11 * 12 / step_s / 8.1e12, rel=0.02)  # fp32 of a T4
    out = capsys.readouterr().out
    assert re.search(r"^Speed    [\d,.]+ samples/s, [\d,.]+ tokens/s, MFU \d+ %$", out, re.M)
