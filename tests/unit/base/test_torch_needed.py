"""Without torch: one line from the commands that train, and no difference to the others.

`scripts/check_wheel.py` tries the same in an environment that really has none.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests/golden/two-ranks"
ADVICE = (
    "install it as https://pytorch.org says for your machine, or pip install 'ddlprof[torch]'; to use the Python of a "
    "training that has it: ddlprof run -- python SCRIPT"
)


COMMAND = "import sys; sys.modules['torch'] = None; from ddlprof.cli.app import main; sys.exit(main())"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """The user's, with a script that says so when it runs."""
    path = tmp_path / "work"
    path.mkdir()
    (path / "train.py").write_text("print('trained')\n")
    return path


def without_torch(directory: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = directory.parent / "ddlprof"
    command.write_text(COMMAND)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    return subprocess.run(
        [sys.executable, str(command), *words], env=environment, cwd=directory, capture_output=True, text=True
    )


@pytest.mark.parametrize(
    "words",
    ["run train.py", "run --nproc-per-node 2 train.py", "run -- torchrun train.py",
     f"run -- {sys.executable} train.py", "characterize train.py", "features models:net"],
)  # fmt: skip
def test_a_command_that_trains_says_what_is_missing(words: str, directory: Path) -> None:
    done = without_torch(directory, *words.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"ddlprof: torch is not installed here ({sys.executable}): {ADVICE}\n"
    assert [path.name for path in directory.iterdir()] == ["train.py"]


def test_a_command_of_its_own_may_start_a_python_that_has_torch(directory: Path) -> None:
    done = without_torch(directory, "run", "--quiet", "--", "echo", "started")
    assert (done.returncode, done.stdout) == (0, "started\n")


def test_switched_off_nothing_is_asked_of_a_script(directory: Path) -> None:
    done = without_torch(directory, "run", "train.py", DDLPROF_DISABLE="1")
    assert (done.returncode, done.stdout, done.stderr) == (0, "trained\n", "")


def test_doctor_says_the_same(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')\n")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-m", "ddlprof", "doctor", "--format", "json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert ADVICE in done.stdout


@pytest.mark.parametrize("words", [f"report {GOLDEN}", f"report {GOLDEN} --format json", "instances", "--help"])
def test_what_reads_needs_none(words: str, directory: Path) -> None:
    done = without_torch(directory, *words.split())
    assert (done.returncode, done.stderr) == (0, "")
