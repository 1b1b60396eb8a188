"""Packages of the user's with names that ours have or had, before and behind ours on the path, in every command."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from ddlprof.cli.commands import commands
from tests.golden.runs import HERE
from tests.integration.processes import Processes
from tests.short import first_short

ROOT = Path(__file__).resolve().parents[3]
NAMES = ("recommender", "instance_catalog", "scripts", "tests", "report", "launch", "registry")
PROGRAM = """
import json, sys
from ddlprof.cli.app import main
codes = {}
for words in json.loads(sys.argv[1]):
    sys.argv = ["ddlprof", *words]
    try:
        codes[words[0]] = main()
    except SystemExit as error:
        codes[words[0]] = error.code
sys.stderr.write(json.dumps(codes))
"""
TRAINING = """
import torch
import recommender
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(4):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).sum().backward()
    optimizer.step()
print(recommender.MINE)
"""
RUN = str(HERE / "two-ranks")
WORDS = [
    ["report", RUN], ["watch", RUN, "--once"], ["compare", RUN, RUN], ["export", RUN, "-o", "tables"],
    ["share", RUN, "-o", "shared.zip"], ["fleet", RUN], ["doctor"], ["instances"],
    ["probe", "--dry-run", "--seconds", "1"],
    ["recommend", RUN, "--samples", "1e6", "--budget", "12h"], ["predict", RUN, "--gpu", "T4"],
    ["learn", RUN], ["plan", RUN, "--machines", "machines.json"], ["elastic", "--jobs", "jobs.json", "--gpus", "2"],
    ["features", "transformer", "--layers", "2", "--hidden", "64", "--heads", "2", "--vocab", "99", "--seq-len", "8"],
    ["cluster", "simulate", "--trace", "none.csv", "--cluster", "2x2"], ["import", "none.json", "-o", "imported"],
    ["fuse", "none:net", "--data", "none:data"],
]  # fmt: skip
STARTS_TRAININGS = {"run", "characterize", "sparsity"}
CANNOT_SUCCEED = {"cluster", "import", "fuse", "learn", "plan", "elastic"}
"""Of these the files are not there, or hold nothing: the answer is one line."""


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages that fail where they are imported."""
    folder = tmp_path / "theirs"
    for name in NAMES:
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text("raise RuntimeError('a package of the user was imported')\n")
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("first", first_short([True, False]), ids=["before ours", "behind ours"])
def test_no_command_takes_them_for_ours(theirs: Path, first: bool, processes: Processes) -> None:
    paths = [theirs, ROOT] if first else [ROOT, theirs]
    every = set(commands())  # a room may have been taken out
    words = json.dumps([words for words in WORDS if words[0] in every])
    path = os.pathsep.join(map(str, paths))
    done = processes.run(sys.executable, "-c", PROGRAM, words, env={"PYTHONPATH": path}, text=True)
    codes = json.loads(done.stderr.splitlines()[-1])
    assert "a package of the user" not in done.stderr + done.stdout
    assert {name: code for name, code in codes.items() if name not in CANNOT_SUCCEED and code > 1} == {}
    assert {name: code for name, code in codes.items() if code not in (0, 1, 2)} == {}
    assert every - STARTS_TRAININGS == set(codes)


@pytest.mark.parametrize("words", [["run", "--quiet"], ["sparsity", "--max-steps", "2"]], ids=lambda words: words[0])
def test_a_training_has_its_own(theirs: Path, words: list[str], processes: Processes) -> None:
    if words[0] not in commands():
        pytest.skip("this room was taken out")
    (theirs / "recommender" / "__init__.py").write_text("MINE = 'imported from the folder of the user'\n")
    Path("train.py").write_text(TRAINING)
    path = os.pathsep.join(map(str, [theirs, ROOT]))
    done = processes.run(sys.executable, "-m", "ddlprof", *words, "train.py", env={"PYTHONPATH": path}, text=True)
    assert done.returncode == 0, done.stderr
    assert "imported from the folder of the user" in done.stdout
