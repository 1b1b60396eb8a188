"""A class is added in the places that docs/architecture.md names, to a copy of the sources, and is in every output."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import ddlprof

ROOT = Path(ddlprof.__file__).parent.parent
EDITS = {
    "ddlprof/model/classes.py": [
        (r'(    StepClass\("other")', r'    StepClass("toy", words="playing", own_words="time at play"),\n\1'),
    ],
    "ddlprof/model/records.py": [
        (r"(class StepRow:.*?)(    other_ns: int\n)", r"\1    toy_ns: int = field(default=0, kw_only=True)\n\2"),
        (r"(class Aggregate:.*?)(    other_ns: int\n)", r"\1    toy_ns: int = field(default=0, kw_only=True)\n\2"),
    ],
    "ddlprof/collect/steps/sums.py": [(r"(class Sums:.*?)(    other: int = 0\n)", r"\1    toy: int = 0\n\2")],
    "ddlprof/collect/steps/under_way.py": [
        (r"(def _book_h2d.*?self\._sums\.)h2d", r"\1toy"),
    ],
    "ddlprof/collect/steps/row.py": [
        (r"(other_ns=.*?),\n", r"\1 - sums.toy,\n        toy_ns=sums.toy,\n"),
    ],
    "recommender/estimate.py": [
        (r"(class StepTimes:.*?    other_s: float\n)", r"\1    toy_s: float = 0.0\n"),
        (r'("other": False)', r'\1, "toy": True'),
    ],
    "recommender/workload.py": [(r"    other_s: (\w+ \| None = None\n)", r"    toy_s: \1\g<0>")],
}
"""By file: what is found, and what takes its place."""

PROGRAM = """
import csv, io, json, sys
from pathlib import Path
from ddlprof.analysis.run import analyse
from ddlprof.api import load
from ddlprof.collect.steps.attribution import StepAssembler
from ddlprof.writing.retention import Budget
from ddlprof.writing.writer import RankWriter
from ddlprof.model.events import Kind
from ddlprof.model.records import End, RankHeader
from ddlprof.report import characterize as text
from ddlprof.report.plans import data as rows, prediction
from ddlprof.report.run import csv as tables, text as card
from ddlprof.report.run.data import build_report
from ddlprof.report.run.formats import as_json
from ddlprof.store import load_run
from ddlprof.recommender import Target, predict, recommend
from tests.golden.runs import manifest

MS, here = 1_000_000, Path(sys.argv[1])
writer = RankWriter(RankHeader(0, 1, 0, 0, "host", "n", 1, "T4", "host", 0, 0), Budget(6000, 2000))
writer.open(here / "run")
manifest().write(here / "run")
assembler, now = StepAssembler(0), 0
for step in range(100):
    for kind, ms, payload in (
        (Kind.FORWARD_BEGIN, 0, (True, True, 4)), (Kind.FORWARD_END, 20, (True,)), (Kind.BACKWARD_BEGIN, 0, ()),
        (Kind.BACKWARD_END, 30, ()), (Kind.H2D_BEGIN, 0, ()), (Kind.H2D_END, 40, ()),
        (Kind.OPTIMIZER_BEGIN, 0, (0,)), (Kind.OPTIMIZER_END, 10, (0, False, None if step else ("SGD", 9))),
    ):
        now += ms * MS
        for done in assembler.feed((kind, now, *payload, *[None] * (3 - len(payload)))):
            writer.step(done)
writer.context(End("ok", 0, now))
writer.close()
run = load_run(here / "run")
attempts = analyse(run)
report = build_report(run, attempts, 0)
tables.export(run, attempts, here / "csv")
loaded = load(here / "run")
workload = loaded.workload()
target = Target(gpu_model="T4", placement=(1,), batch_per_gpu=32)
estimate = predict(workload, target)
plans = recommend(workload, samples=1e6, budget_s=1e6, instance_types=["g4dn.xlarge"])
said = {
    "card": card.render(report),
    "json": json.loads(as_json(report)),
    "csv": {name: (here / "csv" / name).read_text() for name in ("steps.csv", "ranks.csv", "summary.csv")},
    "frame": list(loaded.steps.columns),
    "kept": len(loaded.steps),
    "characterize": list(text._times()),
    "measured": workload.measurements[0].toy_s,
    "estimate": [estimate.toy_s, estimate.step_s, sum(estimate.times.of(n) for n in ("compute", "other", "toy"))],
    "predict": prediction.render("job", [prediction.Prediction(target, estimate)]),
    "predict json": json.loads(prediction.as_json("job", [prediction.Prediction(target, estimate)]))["estimate"],
    "plan": plans[0].toy_s,
    "plans": list(csv.DictReader(io.StringIO(rows.as_csv(plans)))),
}
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    copy = tmp_path_factory.mktemp("copy")
    for package in ("ddlprof", "recommender", "instance_catalog", "tests/golden"):
        shutil.copytree(ROOT / package, copy / package, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name, edits in EDITS.items():
        text = (copy / name).read_text(encoding="utf-8")
        for found, instead in edits:
            text, count = re.subn(found, instead, text, count=1, flags=re.DOTALL)
            assert count == 1, (name, found)
        (copy / name).write_text(text, encoding="utf-8")
    command = [sys.executable, "-c", PROGRAM, str(copy)]
    done = subprocess.run(command, cwd=copy, env={"PYTHONPATH": str(copy)}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


def test_the_page_names_the_files() -> None:
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    section = page.partition("### Adding a class of a step")[2].partition("\n## ")[0]
    for name in EDITS:
        assert Path(name).name in section, name


def test_reports_of_a_run(said: dict) -> None:  # type: ignore[type-arg]
    assert "100 steps" in said["card"]
    assert "toy 40" in said["card"]
    assert "compute 60 (forward 20, backward 30, optimizer 10)" in said["card"]
    assert "TOY-BOUND" in said["card"]
    assert "playing takes 40 ms of a step" in said["card"]
    assert said["json"]["times"]["toy"]["mean_s"] == pytest.approx(0.04)
    assert said["json"]["ranks"][0]["means_s"]["toy"] == pytest.approx(0.04)
    for name in ("steps.csv", "ranks.csv"):
        assert "bubble_s,toy_s,other_s" in said["csv"][name]
    assert "\ntoy,0.04,0.4" in said["csv"]["summary.csv"]
    assert "toy_s" in said["frame"]
    assert said["kept"] < 100  # the others are in the sums
    assert "toy" in said["characterize"]


def test_predictions(said: dict) -> None:  # type: ignore[type-arg]
    assert said["measured"] == pytest.approx(0.04)
    toy_s, step_s, sum_s = said["estimate"]
    assert toy_s == pytest.approx(0.04)
    assert step_s == pytest.approx(sum_s)
    assert step_s == pytest.approx(0.1, rel=0.01)  # a measured step has its noise
    assert re.search(r"^ +toy +40\.0 ms +40 %$", said["predict"], re.MULTILINE)
    assert said["predict json"]["toy_s"] == pytest.approx(0.04)
    assert said["plan"] == pytest.approx(0.04)
    assert next(float(row["toy_s"]) for row in said["plans"] if row["toy_s"]) == pytest.approx(0.04)
