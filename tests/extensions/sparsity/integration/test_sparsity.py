"""`ddlprof sparsity` on real scripts: what it prints and writes, and what it leaves alone."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ddlprof.extensions.sparsity.report import TABLE
from tests.integration.processes import Processes

SCRIPT = """
import sys, torch
from torch import nn
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for step in range(int(sys.argv[1])):
    optimizer.zero_grad()
    net(torch.ones(4, 8)).sum().backward()
    optimizer.step()
print("trained", sys.argv[1:])
sys.exit(3)
"""


@pytest.fixture
def sparsity(processes: Processes) -> Callable[..., subprocess.CompletedProcess[str]]:
    return lambda *words: processes.run(sys.executable, "-m", "ddlprof", "sparsity", *words, text=True)


@pytest.mark.slow
def test_the_script_is_its_own_and_the_result_goes_to_stderr_and_files(
    sparsity: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    done = sparsity("--every", "2", "-o", "a.json", "-o", "a.csv", "train.py", "9", "-o")
    assert (done.returncode, done.stdout) == (3, "trained ['9', '-o']\n")
    assert done.stderr == "ddlprof: wrote a.json\nddlprof: wrote a.csv\n"
    alone = sparsity("--every", "2", "train.py", "9")
    assert (alone.returncode, alone.stdout) == (3, "trained ['9']\n")
    assert "sparsity train · 4 of 9 steps counted" in alone.stderr
    found = json.loads((tmp_path / "a.json").read_text())
    assert [each["layer"] for each in found["layers"]] == ["0", "2"]
    rows = list(csv.DictReader((tmp_path / "a.csv").read_text().splitlines()))
    assert tuple(rows[0]) == TABLE.heads
    assert rows[0]["data_macs"] == "0"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "a.json", "train.py"]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        pytest.param(
            ["train.py", "1"],
            3,
            "nothing was counted: 1 steps of a torch.optim optimizer were seen; it takes two",
            marks=pytest.mark.slow,
        ),
        (["-o", "no/a.json", "train.py", "5"], 2, "no/a.json: cannot be written: there is no folder no"),
        (["gone.py"], 2, "cannot open gone.py"),
        (["torchrun", "train.py"], 2, "torchrun starts other processes: give sparsity the training script itself"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    words: list[str], code: int, message: str, sparsity: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    done = sparsity(*words)
    assert done.returncode == code
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
