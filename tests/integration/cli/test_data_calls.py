"""`ddlprof run --data-call`: functions of the script and of its modules, in all forms of running it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddlprof import load

Completed = subprocess.CompletedProcess[bytes]
STEPS = 12

DATA = """\
import time
import torch

def make_batch(split):
    time.sleep(0.01)
    return torch.rand(4, 2)
"""
SCRIPT = """\
import os, pickle, sys
import torch
from data import make_batch

def batches():
    while True:
        yield make_batch("train")

def get_batch(split):
    \"\"\"Makes a batch.\"\"\"
    return make_batch(split)

source = batches()  # before there is a model
if "WORLD_SIZE" in os.environ:
    torch.distributed.init_process_group("gloo")
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(STEPS):
    batch = next(source) if "generator" in sys.argv else get_batch("train")
    model(batch).sum().backward()
    optimizer.step()
print(sorted(globals()), get_batch.__doc__, pickle.loads(pickle.dumps(get_batch)) is get_batch, file=sys.stdout)
"""


@pytest.fixture
def write(tmp_path: Path) -> None:
    (tmp_path / "data.py").write_text(DATA)
    (tmp_path / "train.py").write_text(SCRIPT.replace("STEPS", str(STEPS)))
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    for name in ("train", "__main__"):
        (tmp_path / "package" / f"{name}.py").write_text(SCRIPT.replace("STEPS", str(STEPS)))


def rows(run: Path) -> list[dict[str, Any]]:
    """Of steps.csv, but for the first, whose imports may take long."""
    found: list[Any] = load(run).steps.to_dict("records")
    assert len(found) == STEPS
    return found[1:]


@pytest.mark.usefixtures("write")
@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("train:get_batch", ["train.py"]),
        pytest.param("__main__:batches", ["train.py", "generator"], marks=pytest.mark.slow),
        pytest.param("package.train:get_batch", ["-m", "package.train"], marks=pytest.mark.slow),
        pytest.param("__main__:get_batch", ["package"], marks=pytest.mark.slow),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_the_waits_are_data(
    call: str, words: list[str], ddlprof: Callable[..., Completed], execute: Callable[..., Completed], tmp_path: Path
) -> None:
    python_path = {"PYTHONPATH": str(tmp_path)}
    plain = execute(sys.executable, *words, **python_path)
    done = ddlprof("run", "--quiet", "--out", "run", "--data-call", call, *words, **python_path)
    assert (done.returncode, done.stdout, done.stderr) == (plain.returncode, plain.stdout, plain.stderr)
    steps = rows(tmp_path / "run")
    assert {row["samples"] for row in steps} == {4}
    assert all(row["data_s"] >= 0.01 for row in steps)


@pytest.mark.slow
@pytest.mark.usefixtures("write")
def test_in_launched_forms(ddlprof: Callable[..., Completed], tmp_path: Path) -> None:
    done = ddlprof("run", "--nproc-per-node", "1", "--out", "run", "--data-call", "__main__:get_batch", "train.py")
    assert done.returncode == 0
    assert all(row["data_s"] >= 0.01 for row in rows(tmp_path / "run"))


@pytest.mark.slow
@pytest.mark.usefixtures("write")
def test_what_was_never_called_is_on_the_card(ddlprof: Callable[..., Completed]) -> None:
    done = ddlprof("run", "--data-call", "__main__:get_batches", "--data-call", "data:make_batch", "train.py")
    text = " ".join(done.stderr.decode().split())
    assert "--data-call __main__:get_batches was never called" in text
    assert "make_batch was never called" not in text


@pytest.mark.slow
def test_the_decorator(ddlprof: Callable[..., Completed], execute: Callable[..., Completed], tmp_path: Path) -> None:
    source = SCRIPT.replace("STEPS", str(STEPS)).replace("def get_batch", "@ddlprof.data_call\ndef get_batch")
    (tmp_path / "data.py").write_text(DATA)
    (tmp_path / "train.py").write_text("import ddlprof\n" + source)
    assert execute(sys.executable, "train.py").returncode == 0
    assert ddlprof("run", "--quiet", "--out", "run", "train.py").returncode == 0
    assert all(row["data_s"] >= 0.01 for row in rows(tmp_path / "run"))
