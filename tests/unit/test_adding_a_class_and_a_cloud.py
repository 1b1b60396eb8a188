"""A class, a metric and a cloud are added in the places that docs/architecture.md names, to a copy of the sources, and
every command is run on the result."""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import ddlprof

pytestmark = pytest.mark.slow
ROOT = Path(ddlprof.__file__).parent.parent
METRIC = 'Annotated[Shared[int | None], StepColumn("toys that were played with")]'
EDITS = {
    "ddlprof/model/classes.py": [
        (
            r'(    StepClass\(\s+"other")',
            r'    StepClass("toy", "the model plays", words="playing", own_words="time at play"),\n\1',
        ),
    ],
    "ddlprof/model/records.py": [
        (rf"(class {record}:.*?)(    other_ns: )", r"\1    toy_ns: Shared[int] = field(default=0, kw_only=True)\n\2")
        for record in ("StepRow", "Aggregate")
    ]
    + [(r"(class StepRow:.*?)(    flags: )", rf"\1    toys: {METRIC} = field(default=None, kw_only=True)\n\2")],
    "ddlprof/collect/steps/sums.py": [(r"(class Sums:.*?)(    other: int = 0\n)", r"\1    toy: int = 0\n\2")],
    "ddlprof/collect/steps/open_step.py": [
        (r"(def _book_h2d.*?self\._sums\.)h2d", r"\1toy"),
    ],
    "ddlprof/collect/steps/row.py": [
        (r"(other_ns=.*?),\n", r"\1 - sums.toy,\n        toy_ns=sums.toy,\n        toys=7,\n"),
    ],
    "recommender/estimate.py": [
        (r"(class StepTimes:.*?)(    other_s: float = 0.0\n)", r"\1    toy_s: float = 0.0\n\2"),
        (r'("other": False)', r'\1, "toy": True'),
    ],
    "recommender/workload.py": [(r"    other_s: (\w+ \| None = None\n)", r"    toy_s: \1\g<0>")],
}
"""By file: what is found, and what takes its place. `toys` is a metric of a step."""
CLOUD_EDITS = {
    "instance_catalog/refresh/run.py": [
        (r"(import Aws\n)", r"\1from ddlprof.instance_catalog.refresh.providers.toy import Toy\n"),
        (r"(    Aws.name: Aws,\n)", r"\1    Toy.name: Toy,\n"),
    ],
    "instance_catalog/data/clouds.csv": [
        (r"\Z", "toy,moon,3600,moonsky,true,true,moonstack,true,true,moon.example/spot=yes,true\n"),
    ],
}


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    copy = tmp_path_factory.mktemp("copy")
    for package in ("ddlprof", "recommender", "instance_catalog", "tests/golden"):
        shutil.copytree(ROOT / package, copy / package, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    provider = copy / "instance_catalog" / "refresh" / "providers" / "toy.py"
    shutil.copy(ROOT / "tests" / "unit" / "instance_catalog" / "refresh" / "made_up.py", provider)
    for name, edits in {**EDITS, **CLOUD_EDITS}.items():
        text = (copy / name).read_text(encoding="utf-8")
        for found, instead in edits:
            text, count = re.subn(found, instead, text, count=1, flags=re.DOTALL)
            assert count == 1, (name, found)
        (copy / name).write_text(text, encoding="utf-8")
    command = [sys.executable, str(Path(__file__).with_name("every_command.py")), str(copy)]
    environment = {"PYTHONPATH": str(copy), "DDLPROF_CATALOG": str(copy / "overlay")}
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


def test_the_page_names_the_files() -> None:
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    for title, edits in (("class of a step", EDITS), ("cloud", CLOUD_EDITS)):
        section = page.partition(f"### Adding a {title}")[2].partition("\n### ")[0]
        for name in edits:
            assert Path(name).name in section, name


SAYS_NOTHING_OF_CLASSES = frozenset(
    ["goodput", "csv", "shared csv", "parquet", "share", "inspect", "plan", "elastic", "advise", "learn", "refresh"]
)


def test_every_command_goes_through(said: dict) -> None:  # type: ignore[type-arg]
    for name, done in said["commands"].items():
        of_aws_only = name in ("emit parallelcluster toy", "emit sagemaker toy")
        expected = 2 if of_aws_only else 1 if name == "learn" else 0  # two runs of one job teach nothing
        assert done["code"] == expected, (name, done)
        if not name.startswith("emit") and name not in SAYS_NOTHING_OF_CLASSES:
            assert "toy" in done["out"].lower(), name


def test_the_cloud_is_what_its_row_says(said: dict) -> None:  # type: ignore[type-arg]
    """Its region has prices, hours are billed, and engines and pods have its names."""
    commands = said["commands"]
    assert [line.split()[:2] for line in commands["refresh"]["out"].splitlines()[1:5]] == [
        ["moon", kind] for kind in ("types", "offerings", "on-demand", "spot")
    ]
    (row,) = json.loads(commands["instances"]["out"])
    assert (row["cloud"], row["instance_type"], row["gpu_model"], row["gpus"]) == ("toy", "t1.one", "T4", 1)
    assert (row["on_demand_usd_per_hour"], row["spot_usd_per_hour"]) == (1.0, 0.4)
    plan = next(csv.DictReader(commands["recommend toy"]["out"].splitlines()))
    assert (plan["cloud"], plan["region"]) == ("toy", "moon")
    assert float(plan["time_h"]) < 0.99
    assert float(plan["cost_usd"]) == 0.4  # a whole hour
    assert "infra: moonsky/moon" in said["engines"]["skypilot"]
    assert "- moonstack" in said["engines"]["dstack"]
    for engine in ("kubernetes", "pytorchjob"):
        assert "moon.example/spot: 'yes'" in said["engines"][engine]
        assert "node.kubernetes.io/instance-type: t1.one" in said["engines"][engine]


def test_a_shared_run_has_all_steps(said: dict) -> None:  # type: ignore[type-arg]
    assert "1 rank, 100 steps in all" in said["commands"]["share"]["out"]
    shared, own = (said["commands"][name]["out"].splitlines() for name in ("shared", "report table"))
    assert [line for line in shared if "toy" in line.lower()] == [line for line in own if "toy" in line.lower()]
    assert not [line for line in shared if "damaged" in line or "left out" in line]


def test_reports_of_a_run(said: dict) -> None:  # type: ignore[type-arg]
    card = said["commands"]["report table"]["out"]
    assert "100 steps" in card
    assert "toy 40" in card
    assert "compute 60 (forward 20, backward 30, optimizer 10)" in card
    assert "TOY-BOUND" in card
    assert "playing takes 40 ms of a step" in card
    report = json.loads(said["commands"]["report json"]["out"])
    assert report["times"]["toy"]["mean_s"] == pytest.approx(0.04)
    assert report["ranks"][0]["means_s"]["toy"] == pytest.approx(0.04)
    assert "the model plays" in said["commands"]["report html"]["out"]
    for name in ("steps.csv", "ranks.csv"):
        assert "bubble_s,toy_s,other_s" in said["tables"][name]
    assert "\ntoy,0.04,0.4" in said["tables"]["summary.csv"]
    assert said["parquet"]["toy_s"] == "double"
    assert "toy_s" in said["frame"]
    assert said["kept"] < 100  # the others are in the sums
    assert "toy" in said["characterize"]


def test_the_metric_is_a_column_of_the_run_and_of_what_is_shared_of_it(said: dict) -> None:  # type: ignore[type-arg]
    for table in (said["tables"]["steps.csv"], said["tables"]["shared.csv"]):
        assert {row["toys"] for row in csv.DictReader(table.splitlines())} == {"7"}
    assert said["parquet"]["toys"] == "int64"


def test_predictions(said: dict) -> None:  # type: ignore[type-arg]
    assert said["measured"] == pytest.approx(0.04)
    toy_s, step_s, sum_s = said["estimate"]
    assert toy_s == pytest.approx(0.04)
    assert step_s == pytest.approx(sum_s)
    assert step_s == pytest.approx(0.1, rel=0.01)  # a measured step has its noise
    assert re.search(r"^ +toy +40\.0 ms +40 %$", said["commands"]["predict table"]["out"], re.MULTILINE)
    assert json.loads(said["commands"]["predict json"]["out"])["estimate"]["toy_s"] == pytest.approx(0.04)
    assert said["plan"] == pytest.approx(0.04)
    plans = csv.DictReader(said["commands"]["recommend csv"]["out"].splitlines())
    assert next(float(row["toy_s"]) for row in plans if row["toy_s"]) == pytest.approx(0.04)
