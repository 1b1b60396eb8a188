"""Makes two runs that spend 40 % of their time in a class `toy`, and has every command say what it finds in them.

`python every_command.py HERE`: in a process of its own, on a copy of the sources with that class and a cloud of the
same name. Prints JSON.
"""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stderr, redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from typing import Any

from pyarrow import parquet

from ddlprof.api import load
from ddlprof.cli.app import main
from ddlprof.collect.steps.attribution import StepAssembler
from ddlprof.emit.engines import ENGINES
from ddlprof.extensions.characterize import report as characterize
from ddlprof.model.events import FirstSeen, Kind
from ddlprof.model.records import End, RankHeader
from ddlprof.recommender import Target, predict, recommend
from ddlprof.report.run.formats import FORMATS
from ddlprof.writing.retention import Budget
from ddlprof.writing.writer import RankWriter
from tests.golden.runs import manifest

MS = 1_000_000
WORK = ("--samples", "1e6", "--budget", "30d")
TYPE = "g4dn.xlarge"
ON_TOY = ("--cloud", "toy", "--pricing", "spot", "--max-nodes", "1")
ENGINES_ON_TOY = ("slurm", "kubernetes", "pytorchjob", "dstack", "skypilot", "torchrun")
EVENTS = (
    (Kind.FORWARD_BEGIN, 0, (True, True, 4)), (Kind.FORWARD_END, 20, (True,)), (Kind.BACKWARD_BEGIN, 0, ()),
    (Kind.BACKWARD_END, 30, ()), (Kind.H2D_BEGIN, 0, ()), (Kind.H2D_END, 40, ()),
    (Kind.OPTIMIZER_BEGIN, 0, (0,)), (Kind.OPTIMIZER_END, 10, (0, False, FirstSeen("SGD", 9))),
)  # fmt: skip
"""A step: what happens, how many milliseconds after what came before it, and the event's values."""


def write_run(directory: Path) -> None:
    """A hundred steps, not all of them kept as rows."""
    writer = RankWriter(RankHeader(0, 1, 0, 0, "host", "n", 1, "T4", "host", 0, 0), Budget(6000, 2000))
    writer.open(directory)
    manifest().write(directory)
    assembler, now = StepAssembler(0), 0
    for _ in range(100):
        for kind, ms, payload in EVENTS:
            now += ms * MS
            for done in assembler.feed((kind, now, *payload, *[None] * (3 - len(payload)))):
                writer.step(done)
    writer.context(End("ok", 0, now))
    writer.close()


def said_by(*words: str) -> dict[str, Any]:
    """What a command prints, and how it ends."""
    out, err = StringIO(), StringIO()
    sys.argv = ["ddlprof", *words]
    with redirect_stdout(out), redirect_stderr(err):
        code = main()
    return {"code": code, "out": out.getvalue(), "err": err.getvalue()}


def commands(here: Path) -> dict[str, list[str]]:
    """Every command that reads a run, in all its formats."""
    run, other, shared = (str(here / name) for name in ("runs/a", "runs/b", "shared.zip"))
    machine = {"name": "one", "gpu": "T4", "network": "10 Gbit/s"}
    (here / "machines.json").write_text(json.dumps({"machines": [machine, {**machine, "gpu": "V100"}]}))
    (here / "jobs.json").write_text(json.dumps([{"name": "job", "run": run, "max_batch": 64, "samples": 1e6}]))
    return {
        "refresh": ["instances", "refresh", "--cloud", "toy"],  # first, as a process reads the catalogue once
        **{f"report {name}": ["report", run, "--format", name] for name in FORMATS},
        "goodput": ["report", run, "--goodput"],
        "csv": ["export", run, "--out", str(here / "csv")],
        "parquet": ["export", run, "--format", "parquet", "--out", str(here / "parquet")],
        "watch": ["watch", run, "--once"],
        **{f"compare {name}": ["compare", run, other, "--format", name] for name in ("table", "json", "html")},
        "share": ["share", run, "-o", shared],
        "inspect": ["share", "--inspect", shared],
        "shared": ["report", shared],
        "shared csv": ["export", shared, "--out", str(here / "shared")],
        "fleet": ["fleet", str(here / "runs"), "--analyse", "2", "--format", "json"],
        **{
            f"recommend {name}": ["recommend", run, *WORK, "--format", name]
            for name in ("table", "json", "csv", "html")
        },
        "recommend shared": ["recommend", shared, *WORK],
        **{
            f"emit {name} {where}": ["recommend", run, *WORK, *of_machines, "--emit", name, "-o", str(here / file)]
            for where, of_machines in (("aws", ("--instance", TYPE)), ("toy", ON_TOY))
            for name, engine in ENGINES.items()
            for file in (f"{name}-{where}.{engine.ending}",)
        },
        **{
            f"predict {name}": ["predict", run, "--instance", TYPE, "--placement", "1", "--format", name]
            for name in ("table", "json")
        },
        "instances": ["instances", "--cloud", "toy", "--format", "json"],
        "show": ["instances", "show", "t1.one"],
        "recommend toy": ["recommend", run, *WORK, *ON_TOY, "--format", "csv"],
        "learn": ["learn", str(here / "runs"), "-o", str(here / "learned.json")],
        "plan": ["plan", run, "--machines", str(here / "machines.json")],
        "elastic": ["elastic", "--jobs", str(here / "jobs.json"), "--gpus", "2"],
        "advise": ["cluster", "advise", run, "--gpus", "8", "--gpus-per-node", "4", "--remaining", "9h"],
    }


def written(here: Path) -> dict[str, Any]:
    """What is in the files of `export`."""
    (steps,) = here.glob("parquet/steps/*/*/*.parquet")
    schema = parquet.read_schema(steps)
    tables = {name: (here / "csv" / name).read_text() for name in ("steps.csv", "ranks.csv", "summary.csv")}
    return {
        "tables": {**tables, "shared.csv": (here / "shared" / "steps.csv").read_text()},
        "engines": {name: next(here.glob(f"{name}-toy.*")).read_text() for name in ENGINES_ON_TOY},
        "parquet": {field.name: str(field.type) for field in schema},
    }


def by_python(run: Path) -> dict[str, Any]:
    """What the Python API says."""
    workload = load(run).workload()
    target = Target(gpu_model="T4", placement=(1,), batch_per_gpu=32)
    estimate = predict(workload, target)
    plan, *_ = recommend(workload, samples=1e6, budget_s=1e6, instance_types=[TYPE])
    measured, times = vars(workload.measurements[0]), estimate.times
    return {
        "characterize": list(characterize._times()),
        "frame": list(load(run).steps.columns),
        "kept": len(load(run).steps),
        "measured": measured["toy_s"],
        "estimate": [estimate.toy_s, estimate.step_s, sum(times.of(name) for name in ("compute", "other", "toy"))],
        "plan": plan.toy_s,
    }


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    for name in ("a", "b"):
        write_run(folder / "runs" / name)
    said: dict[str, Any] = {}
    for name, words in commands(folder).items():
        with suppress(SystemExit):
            said[name] = said_by(*words)
    answers = {"commands": said, **written(folder), **by_python(folder / "runs" / "a")}
    print(json.dumps(answers))
