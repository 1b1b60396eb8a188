"""What a plan starts: the command that reaches torchrun, and what all files say of it."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddlprof.emit.start import Start, file_name, start_of, torchrun
from ddlprof.recommender.plans.plan import Plan
from ddlprof.recommender.plans.ranking import recommend
from tests.unit.emit.made import ONE, TWO, TWO_ON_SPOT
from tests.unit.recommender.made_up import CATALOG, MadeUp, five_gib_and_half_a_sample, job


def plans(instance_types: tuple[str, ...] = ("small.4",), nodes: int = 2, **question: Any) -> list[Plan]:
    made = recommend(
        job(), samples=3.6e5, budget_s=1e9, max_nodes=nodes, instance_types=instance_types, catalog=CATALOG,
        predictor=MadeUp(), memory=five_gib_and_half_a_sample, **question,
    )  # fmt: skip
    return [plan for plan in made if not plan.reason]


def made(number: int = 1, asked: str = "", **question: Any) -> Start:
    found = plans(**question)
    return start_of(found, found[number - 1], number, "train", ["train.py"], asked, CATALOG)


def typed(command: list[str], tmp_path: Path) -> list[str]:
    """What torchrun gets when bash runs the command on the second of two machines."""
    script = 'torchrun() { printf "%s\\0" "$@"; }\n' + "\n".join(command)
    environment = {"K": "1", "A": "10.0.0.1", "PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}
    done = subprocess.run(["bash", "-euc", script], env=environment, capture_output=True, check=True, cwd=tmp_path)
    return done.stdout.decode().split("\0")[:-1]


def test_the_command_reaches_torchrun_as_it_was_typed(tmp_path: Path) -> None:
    words = ["train.py", "--name", "it's $HOME", "--text=a\nb\\n", "--é", ""]
    seen = typed(torchrun(words, 2, 4, '"runs/$K"', '"$K"', '"$A"'), tmp_path)
    assert seen == [
        "--nnodes", "2", "--node-rank", "1", "--master-addr", "10.0.0.1", "--master-port", "29500",
        "--nproc-per-node", "4", "-m", "ddlprof", "run", *words,
    ]  # fmt: skip


def test_one_machine_needs_no_address(tmp_path: Path) -> None:
    seen = typed(torchrun(["-m", "package.train", "--lr", "1"], 1, 8, "out", "RANK", "ADDRESS"), tmp_path)
    assert seen[:3] == ["--standalone", "--nproc-per-node", "8"]
    assert seen[3:] == ["-m", "ddlprof", "run", "--out", "out", "-m", "package.train", "--lr", "1"]


def test_another_plan_is_told() -> None:
    ranked = plans()
    start = made(number=2)
    assert start.told[0].startswith(f"Plan 2: {ranked[1].nodes} x small.4")
    assert start.nodes == ranked[1].nodes != made().nodes


def test_spot_machines_are_warned_of() -> None:
    start = made(pricing="spot", instance_types=("small.1",), nodes=1)
    assert start.machine.is_spot
    assert any("let the job write a checkpoint" in line for line in start.comments("x", {}))
    assert any("a checkpoint every 10 min" in line for line in TWO_ON_SPOT.comments("x", {}))
    assert replace(TWO_ON_SPOT, interruptions=0.1).starts == 10
    assert TWO_ON_SPOT.starts == 14


def test_what_is_missing_is_said() -> None:
    assert "  YOUR_SCRIPT: the training script and its arguments" in replace(ONE, words=()).comments("x", {})
    assert not any("YOUR_SCRIPT" in line for line in ONE.comments("x", {}))
    hidden = replace(ONE, words=("train.py", "--token", "***"))
    assert any("stands for what may be a credential" in line for line in hidden.comments("x", {}))
    assert torchrun((), 1, 1, "out", "", "")[-1] == "  YOUR_SCRIPT"


@pytest.mark.parametrize(
    ("job", "name"),
    [
        ("train", "train"), ("my net (v2)", "my-net-v2"), ("../x", "x"), ("é", "train"), ("__main__", "main"),
        ("a - b", "a-b"), ("a_b.c", "a_b.c"), ("a___b", "a-b"),
    ],
)  # fmt: skip
def test_names_are_what_engines_take(job: str, name: str) -> None:
    assert file_name(job) == name
    # The names of SkyPilot's tasks.
    assert re.fullmatch("[a-zA-Z0-9]+(?:[._-]{1,2}[a-zA-Z0-9]+)*", name)
    assert replace(TWO, job=job).run_directory("a", "$X") == f'"a/{name}-$X"'
