"""`ddlprof elastic` as a user types it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddlprof.recommender import Measurement, Target, Workload, predict
from ddlprof.recommender.layout import parse_layout
from tests.golden.runs import simple_run
from tests.unit.cli.commands import ddlprof, rows, write_workload
from tests.unit.recommender.made_up_layouts import JOB

pytestmark = pytest.mark.usefixtures("alone")

STEPS = "1x32=0.10;1x64=0.18;2x64=0.13;4x128=0.16"
HEAD = "name,run,min_batch,max_batch,samples,submit_s,noise_scale\n"


def written(text: str, name: str = "jobs.csv") -> list[str]:
    Path(name).write_text(text, encoding="utf-8")
    return ["--jobs", name]


def test_measured_steps_become_shares(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    jobs = written(f"{HEAD}a,{STEPS},16,512,,5,\nb,1x8=0.2;1x16=0.35;2x16=0.3,8,64,,,\n")
    assert ddlprof(monkeypatch, "elastic", *jobs, "--gpus", "6", "-o", "-", "-o", "o.csv") == 0
    out = capsys.readouterr().out
    assert out.startswith("ddlprof  elastic 2 jobs · 6 GPUs (as measured, all in one machine)\n")
    assert "taken to train as well as any other, sample for sample" in " ".join(out.split())
    found = rows("o.csv")
    assert [row["name"] for row in found] == ["b", "a"]  # in the order of submission
    assert sum(int(row["gpus"]) for row in found) == 6
    for row in found:
        rate = float(row["batch"]) / float(row["step_s"])
        assert float(row["samples_per_s"]) == pytest.approx(rate)
        assert float(row["samples_per_s_low"]) < rate < float(row["samples_per_s_high"])
        assert row["efficiency"] == ""


def test_noise_charges_large_batches_and_says_for_whom_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = written(f"{HEAD}a,{STEPS},16,512,,,300\nb,{STEPS},16,512,,,\n")
    free: dict[str, Any] = {}
    charged: dict[str, Any] = {}
    for options, found in (([], free), (["--stat-eff"], charged)):
        assert ddlprof(monkeypatch, "elastic", *jobs, "--gpus", "8", "--format", "json", *options) == 0
        found.update(json.loads(capsys.readouterr().out))
    one, other = free["jobs"][0], charged["jobs"][0]
    assert other["batch"] / other["gpus"] < one["batch"] / one["gpus"]
    assert other["efficiency"] == pytest.approx((300 + 16) / (300 + other["batch"]))
    assert other["effective_samples_per_s"] == pytest.approx(other["samples_per_s"] * other["efficiency"])
    assert (charged["statistical_efficiency"], charged["jobs"][1]["efficiency"]) == (True, None)
    assert "b has no noise_scale: its batches are not charged for" in charged["notes"]
    assert free["batches"] != charged["batches"]


def test_too_many_jobs_wait(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    jobs = written(HEAD + "".join(f"{name},{STEPS},,,,,\n" for name in "abc"))
    assert ddlprof(monkeypatch, "elastic", *jobs, "--gpus", "2") == 0
    out = capsys.readouterr().out
    assert "Waits    c: GPUs go to the jobs submitted first" in out
    assert sum(line.split()[:4] == [name, "1", "32", "32"] for line in out.splitlines() for name in "ab") == 2


def test_a_simulation_has_all_baselines(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    jobs = written(f"{HEAD}a,{STEPS},16,512,1e6,,\nb,{STEPS},16,512,1e6,100,\n")
    assert ddlprof(monkeypatch, "elastic", *jobs, "--gpus", "4", "--simulate", "--format", "json") == 0
    found = {course["policy"]: course for course in json.loads(capsys.readouterr().out)["simulated"]}
    assert list(found) == ["elastic", "fixed-max", "fixed-random", "fixed-min", "fifo"]
    assert found["elastic"]["mean_completion_s"] < found["fixed-min"]["mean_completion_s"]
    assert ddlprof(monkeypatch, "elastic", *jobs, "--gpus", "4", "--simulate") == 0
    assert "MEAN / ELASTIC" in capsys.readouterr().out


def test_runs_and_workloads_lie_beside_the_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("sub").mkdir()
    simple_run(Path("sub/run"))
    destinations = (((1,), 0.2), ((4,), 0.25), ((4, 4), 0.4))
    measured = [Measurement("g4dn.12xlarge", placement=p, batch_per_gpu=32, step_s=s) for p, s in destinations]
    write_workload(Workload("net", gradient_bytes=1e8, measurements=measured), Path("sub/net.json"))
    jobs = written('[{"name": "net", "run": "net.json", "max_batch": 512}]', "sub/jobs.json")
    assert ddlprof(monkeypatch, "elastic", *jobs, "--gpus", "8") == 0
    out = capsys.readouterr().out
    assert "8 GPUs (2 machines of 4, g4dn.12xlarge)" in out
    assert ddlprof(monkeypatch, "elastic", *written("name,run\nx,run\n", "sub/jobs.csv"), "--gpus", "2") == 0
    assert "x: predicted from their own measurements alone" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        ("", [], "jobs.csv, line 1: no column name; see docs/elastic.md"),
        ("name,run\n", [], "jobs.csv: has no jobs"),
        ("name,run\na,1x32=0.1\na,1x32=0.1\n", [], "two jobs are called a"),
        ("name,run\na,\n", [], "a: give a run directory, a workload file or steps such as 1x32=0.12 in run"),
        ("name,run\na,nowhere\n", [], "a: nowhere: no such run directory"),
        ("name,run\na,3x32=0.1\n", [], "a: 3x32=0.1: 32 samples do not divide evenly by 3 GPUs"),
        ("name,run\na,1x32=0\n", [], "a: 1x32=0: measurement: step_s"),
        ("name,run,min_gpus\na,1x32=0.1,zero\n", [], "line 2: min_gpus: a whole number from 1 to"),
        ("name,run,min_gpus\na,1x32=0.1;2x32=0.1,9\n", [], "a: needs 9 GPUs, and 4 can be had"),
        ("name,run,max_gpus\na,1x32=0.1,2\n", [], "a: measured with one rank only"),
        ("name,run,min_batch,max_batch\na,1x32=0.1,64,32\n", [], "a: min_batch 64 is above max_batch 32"),
        ("name,run\na,1x32=0.1\n", ["--simulate"], "--simulate: a has no samples"),
        ("name,run\na,1x32=0.1\n", ["--stat-eff"], "--stat-eff: no job has a noise_scale"),
        ("name,run\na,1x32=0.1\n", ["--format", "html"], "unknown format 'html'; known: table, json, csv"),
        ("name,run\na,1x32=0.1\n", ["--instance", "p9"], "p9"),
        ("name,run\na,1x32=0.1\n", ["--instance", "p3.2xlarge", "--gpu", "T4"], "give --instance or --gpu, not both"),
        ('[{"name": "a", "run": "1x32=0.1", "batches": 3}', [], "jobs.csv: not JSON"),
        ('[{"name": "a"}, {"name": 3}]', [], "jobs.csv: jobs[1].name: "),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str, options: list[str], said: str
) -> None:
    assert ddlprof(monkeypatch, "elastic", *written(text), "--gpus", "4", *options) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert err.count("\n") == 1


def test_machines_that_differ_must_be_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, instance in (("a", "g4dn.12xlarge"), ("b", "p3.8xlarge")):
        measured = [Measurement(instance, placement=(1,), batch_per_gpu=32, step_s=0.1)]
        write_workload(Workload(name, gradient_bytes=1e8, measurements=measured), Path(f"{name}.json"))
    jobs = written("name,run\na,a.json\nb,b.json\n")
    assert ddlprof(monkeypatch, "elastic", *jobs, "--gpus", "4") == 2
    assert "a was measured on g4dn.12xlarge, b on p3.8xlarge: say which machines" in capsys.readouterr().err
    assert ddlprof(monkeypatch, "elastic", *jobs, "--gpus", "4", "--instance", "g4dn.12xlarge") == 0


def test_a_layout_keeps_tensor_and_pipeline_and_scales_its_data_ranks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_workload(JOB, Path("model.json"))
    head = "name,run,min_batch,max_batch,samples,layout\n"
    jobs = written(f'{head}a,model.json,64,64,1e5,"tp4,pp2,zero1,mb2"\nb,model.json,64,64,1e5,"tp4,zero1"\n')
    asked = ["elastic", *jobs, "--instance", "p5.48xlarge", "--gpus-per-node", "8"]
    assert ddlprof(monkeypatch, *asked, "--gpus", "30", "-o", "o.csv") == 0
    found = {row["name"]: row for row in rows("o.csv")}
    gpus = {name: int(row["gpus"]) for name, row in found.items()}
    assert gpus["a"] % 8 == 0
    assert gpus["b"] % 4 == 0
    assert 24 <= sum(gpus.values()) <= 30
    for name, layout in (("a", "tp4,pp2,zero1"), ("b", "tp4,zero1")):
        whole, rest = divmod(gpus[name], 8)
        part, micro_batch = parse_layout(layout).layout, 2 if name == "a" else 1
        passes = math.ceil(64 / part.data_ranks(gpus[name]) / micro_batch)
        placement = (8,) * whole + (rest,) * bool(rest)
        target = Target(
            "p5.48xlarge", placement, batch_per_gpu=micro_batch, grad_accum=passes, precision="bf16", layout=part
        )
        expected = predict(JOB, target)
        assert float(found[name]["step_s"]) == pytest.approx(expected.step_s)
    assert ddlprof(monkeypatch, *asked, "--gpus", "4") == 2
    assert "a: needs 8 GPUs, and 4 can be had" in capsys.readouterr().err
    assert ddlprof(monkeypatch, *asked, "--gpus", "16", "--simulate") == 0


def test_a_layout_needs_the_sizes_of_a_transformer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_workload(replace(JOB, transformer=None), Path("model.json"))
    jobs = written('name,run,batch,layout\na,model.json,64,"tp2"\n')
    assert ddlprof(monkeypatch, "elastic", *jobs, "--instance", "p5.48xlarge", "--gpus", "8") == 2
    assert "made-up: a layout needs the sizes of a transformer" in capsys.readouterr().err
