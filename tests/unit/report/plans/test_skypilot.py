"""The task file for SkyPilot: what it says, that bash and SkyPilot itself take it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddlprof.base.errors import UserError
from ddlprof.report.plans.skypilot import render, task_name
from recommender.plans.plan import Plan
from recommender.plans.ranking import recommend
from tests.unit.recommender.made_up import CATALOG, MadeUp, five_gib_and_half_a_sample, job

CATALOG_HEAD = (
    "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Price,SpotPrice,Region,AvailabilityZone,Arch"
)
LOAD = "import sys, sky; t = sky.Task.from_yaml(sys.argv[1]); r, = t.resources; print(t.num_nodes, r.instance_type,"
LOAD += " r.region, r.use_spot, t.name)"


def plan(instance_type: str = "small.4", nodes: int = 2, **question: Any) -> Plan:
    plans = recommend(
        job(), samples=3.6e5, budget_s=1e9, max_nodes=nodes, instance_types=[instance_type], catalog=CATALOG,
        predictor=MadeUp(), memory=five_gib_and_half_a_sample, **question,
    )  # fmt: skip
    return next(plan for plan in plans if plan.nodes == nodes and not plan.reason)


def run_lines(text: str) -> str:
    return text.partition("\nrun: |\n")[2]


def arguments(text: str, tmp_path: Path) -> list[str]:
    """What torchrun gets when bash runs the task on the second of two nodes."""
    script = 'torchrun() { printf "%s\\0" "$@"; }\n' + run_lines(text)
    environment = {"SKYPILOT_NODE_RANK": "1", "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2", "PATH": os.environ["PATH"]}
    environment["LC_ALL"] = "C.UTF-8"
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, check=True, cwd=tmp_path)
    return done.stdout.decode().split("\0")[:-1]


def test_a_task_names_the_machines() -> None:
    text = render(plan(), "train", ["train.py"])
    for line in (
        'name: "train"', '  infra: "aws/us-east-1"', '  instance_type: "small.4"', "  use_spot: false", "num_nodes: 2",
        "# It holds for 8 samples per GPU and forward pass, 1 pass an update, 64 samples an update in all.",
    ):  # fmt: skip
        assert line in text.splitlines()
    assert "spot machine" not in text


def test_settings_that_the_command_must_ask_for_are_said() -> None:
    text = render(plan(), "train", ["train.py"], "precision bf16, torch.compile yes")
    assert "# It is with precision bf16, torch.compile yes: see that the command below asks for it.\n" in text
    assert "# It is with" not in render(plan(), "train", ["train.py"])


def test_spot_is_asked_for_and_warned_of() -> None:
    text = render(plan("small.1", 1, pricing="spot"), "train", ["train.py"])
    assert "  use_spot: true" in text.splitlines()
    assert "A spot machine can be taken away at any time" in text


def test_the_command_reaches_torchrun_as_it_was_typed(tmp_path: Path) -> None:
    words = ["train.py", "--name", "it's $HOME", "--text=a\nb\\n", "--é", ""]
    words_seen = arguments(render(plan(), "train", words), tmp_path)
    assert words_seen == [
        "--nnodes", "2", "--nproc-per-node", "4", "--node-rank", "1", "--master-addr", "10.0.0.1", "--master-port",
        "29500", *words,
    ]  # fmt: skip


def test_a_module_is_run_as_one(tmp_path: Path) -> None:
    assert arguments(render(plan(), "package.train", ["-m", "package.train", "--lr", "1"]), tmp_path)[-4:] == [
        "-m", "package.train", "--lr", "1",
    ]  # fmt: skip


def test_what_is_missing_is_said() -> None:
    assert "# Put the training script and its arguments here." in render(plan(), "train", [])
    assert "stands for a credential" in render(plan(), "train", ["train.py", "--token", "***"])


def test_names_are_what_skypilot_takes() -> None:
    assert [task_name(name) for name in ("train", "my net (v2)", "../x", "é")] == ["train", "my-net-v2", "x", "train"]


def test_the_file_is_yaml() -> None:
    yaml = pytest.importorskip("yaml")
    task = yaml.safe_load(render(plan(), "train: me", ["train.py", "--x", "a: b # c"]))
    assert set(task) == {"name", "resources", "num_nodes", "workdir", "setup", "run"}
    assert task["resources"] == {"infra": "aws/us-east-1", "instance_type": "small.4", "use_spot": False}
    assert task["num_nodes"] == 2


@pytest.mark.skipif(importlib.util.find_spec("sky") is None, reason="SkyPilot is not installed")
def test_skypilot_loads_it(tmp_path: Path) -> None:
    # Its loader checks the machine against its own catalogue, which it would download.
    catalog = tmp_path / ".sky" / "catalogs" / "v8" / "aws" / "vms.csv"
    catalog.parent.mkdir(parents=True)
    catalog.write_text(f"{CATALOG_HEAD}\nsmall.4,T4,4,32,244,,5,1,us-east-1,us-east-1a,x86_64\n")
    task = tmp_path / "task.yaml"
    task.write_text(render(plan(), "train", ["train.py"]))
    environment = {**os.environ, "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", LOAD, str(task)], env=environment, capture_output=True, text=True, cwd=tmp_path
    )
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["2 small.4 us-east-1 False train"]), done.stderr


@pytest.mark.parametrize("cloud", ["coreweave", "vast"])
def test_machines_that_skypilot_does_not_rent_by_type_are_refused(cloud: str) -> None:
    with pytest.raises(UserError, match=f"rents no machines of {cloud} by type"):
        render(replace(plan(), cloud=cloud), "job", ["train.py"])
