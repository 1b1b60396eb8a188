"""`ddlprof cluster simulate` as a process: the documentation's own policy, other processes, and Ctrl-C."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.integration.processes import PATIENCE_S, Processes, until

Run = Callable[[str], subprocess.CompletedProcess[str]]
ROOT = Path(__file__).parents[4]
PAGE = (ROOT / "docs/cluster.md").read_text(encoding="utf-8")
DDLPROF = [sys.executable, "-m", "ddlprof"]


def block(beginning: str) -> str:
    """A block of code of the page."""
    blocks: list[str] = re.findall(r"^```\w*\n(.*?)^```$", PAGE, re.S | re.M)
    return next(text for text in blocks if text.startswith(beginning))


def example(folder: Path) -> None:
    (folder / "examples").mkdir()
    (folder / "examples/jobs.csv").write_bytes((ROOT / "examples/jobs.csv").read_bytes())


@pytest.fixture
def run(processes: Processes) -> Run:
    return lambda command: processes.run(*DDLPROF, *command.split()[1:], text=True)


def test_the_page_shows_what_the_command_prints(run: Run, tmp_path: Path) -> None:
    example(tmp_path)
    command = block("ddlprof cluster simulate").splitlines()[0]
    found = run(command)
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout == block("ddlprof  cluster simulate")


@pytest.mark.parametrize("workers", ["1", "2"])
def test_the_policy_of_the_page_runs_from_the_current_directory(run: Run, tmp_path: Path, workers: str) -> None:
    example(tmp_path)
    (tmp_path / "smallest.py").write_text(block("from ddlprof.cluster.packing"), encoding="utf-8")
    command = block("ddlprof cluster simulate --trace examples/jobs.csv --cluster 2x4 --policy fifo,smallest").strip()
    found = run(f"{command} --workers {workers}")
    assert (found.returncode, found.stderr) == (0, "")
    assert re.search(r"^smallest:Smallest +\d", found.stdout, re.M)


def test_the_python_of_the_page_runs(processes: Processes, tmp_path: Path) -> None:
    example(tmp_path)
    (tmp_path / "sweep.py").write_text(block("from pathlib"), encoding="utf-8")
    found = processes.run(sys.executable, "sweep.py", text=True)
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout.count("Case(policy=") == 4


def test_ctrl_c_ends_all_processes_and_leaves_nothing(processes: Processes, tmp_path: Path) -> None:
    lines = [f"{number},{30 * number},{1 + number % 8},{500 + number % 97}" for number in range(10_000)]
    (tmp_path / "long.csv").write_text("\n".join(["job_id,submit_s,gpus,duration_s", *lines]))
    command = (
        "cluster simulate --trace long.csv --cluster 4x8 --policy srtf --seed 0-50 --workers 2 --arrivals poisson"
        " -o x.json -o x.html -o out/"
    )
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    process = processes.start(
        *DDLPROF, *command.split(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={"TMPDIR": str(temporary)},
    )  # fmt: skip
    until(lambda: len(list(temporary.glob("ddlprof-*/*"))) == 2, process)  # both workers tell how far they are
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) >= 2
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out, err) == (130, "", "")
    _, alive = psutil.wait_procs(children, timeout=PATIENCE_S)
    assert not alive
    assert sorted(path.name for path in tmp_path.iterdir()) == ["long.csv", "out", "temporary"]
    assert not list((tmp_path / "out").iterdir())
    assert not list(temporary.glob("ddlprof-*"))
