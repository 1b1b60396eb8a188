"""Processes that a script or a launcher starts: those that train are recorded, all others are left alone."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

from ddlprof.store import load_run

Execute = Callable[..., subprocess.CompletedProcess[bytes]]
Write = Callable[..., str]

STEPS = 40
LOADER = """\
import sys, time, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(64, 8))
    for _ in range(2):
        for (x,) in DataLoader(data, batch_size=4, num_workers=2, multiprocessing_context=sys.argv[1]):
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
"""
FORKED = """\
import sys, torch
from multiprocessing import get_context
from torch import nn

model = nn.Linear(8, 2)

def train(optimizer):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(40):
        optimizer.zero_grad()
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
    print("trained", flush=True)

optimizer = torch.optim.SGD(model.parameters(), lr=0.1) if sys.argv[1] == "parent" else None
child = get_context("fork").Process(target=train, args=(optimizer,))
child.start()
child.join()
sys.exit(child.exitcode)
"""
AGAIN = """\
import os, sys, torch

model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
steps = 40 if "again" in sys.argv else 25
for _ in range(steps):
    optimizer.zero_grad()
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
if "again" not in sys.argv:
    os.execv(sys.executable, [sys.executable, *sys.argv, "again"])
print("trained", steps)
"""
HELPERS = """\
import subprocess, sys
for code in ("import torch; torch.nn.Linear(2, 2)", "import sys; print('helper', len(sys.argv))",
             "import torch; torch.optim.SGD([torch.ones(1)], lr=1)"):
    subprocess.run([sys.executable, "-c", code], check=True)
trains = "import torch; o = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=1); o.step(); print('off')"
import os
subprocess.run([sys.executable, "-c", trains], check=True, env={**os.environ, "DDLPROF_DISABLE": "1"})
"""


def steps_of(run: Path) -> list[int]:
    """Of each rank."""
    return [len(rank.steps) for rank in load_run(run).ranks]


@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_loader_workers_are_no_ranks(context: str, ddlprof: Execute, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LOADER)
    done = ddlprof("run", "--out", "run", "train.py", context)
    assert done.returncode == 0, done.stderr.decode()
    assert steps_of(tmp_path / "run") == [32]


@pytest.mark.slow
def test_helpers_are_left_alone(ddlprof: Execute, write_training: Write, tmp_path: Path) -> None:
    done = ddlprof("run", "--out", "run", write_training(STEPS, HELPERS))
    assert done.returncode == 0, done.stderr.decode()
    assert b"helper 1" in done.stdout
    assert b"off" in done.stdout
    assert steps_of(tmp_path / "run") == [STEPS]
    assert done.stderr.count(b"ddlprof ") == 1 + done.stderr.count(b"next: ddlprof ")  # the card, and nothing else


@pytest.mark.slow
def test_a_child_that_trains_is_the_rank(ddlprof: Execute, write_training: Write, tmp_path: Path) -> None:
    """The process that was profiled trains nothing itself; a second child has no place left, and says so."""
    write_training(STEPS, "sys.exit(5)\n")
    (tmp_path / "start.py").write_text(
        "import subprocess, sys, torch\n"
        "for _ in range(2):\n    code = subprocess.run([sys.executable, 'train.py']).returncode\nsys.exit(code)\n"
    )
    done = ddlprof("run", "--out", "run", "start.py")
    assert done.returncode == 5
    assert steps_of(tmp_path / "run") == [STEPS]
    assert done.stderr.count(b"Files ") == 1
    assert done.stderr.count(b"another process of this run trains, too") == 1
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert (manifest["name"], manifest["argv"]) == ("start", ["train.py"])
    assert manifest["model"]["layers"] == 2


@pytest.mark.slow
def test_a_child_whose_python_imports_torch_at_its_start_is_the_rank(
    ddlprof: Execute, write_training: Write, tmp_path: Path
) -> None:
    """A line of a .pth file is run before any `sitecustomize`."""
    write_training(STEPS)
    python = tmp_path / "theirs"
    venv.create(python, symlinks=True)
    (packages,) = python.glob("lib/python3*/site-packages")
    where = importlib.util.find_spec("torch")
    assert where is not None
    assert where.origin is not None
    (packages / "a.pth").write_text(f"{Path(where.origin).parents[1]}\n")
    (packages / "b.pth").write_text("import torch\n")
    (tmp_path / "start.py").write_text(
        f"import subprocess, sys\nsys.exit(subprocess.call([{str(python / 'bin' / 'python')!r}, 'train.py']))\n"
    )
    done = ddlprof("run", "--out", "run", "start.py")
    assert done.returncode == 0, done.stderr.decode()
    assert steps_of(tmp_path / "run") == [STEPS]


@pytest.mark.parametrize("optimizer_of", ["child", "parent"])
def test_a_forked_child_that_trains_is_the_rank(optimizer_of: str, ddlprof: Execute, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(FORKED)
    done = ddlprof("run", "--out", "run", "train.py", optimizer_of)
    assert (done.returncode, done.stdout) == (0, b"trained\n"), done.stderr.decode()
    assert steps_of(tmp_path / "run") == [STEPS]
    assert done.stderr.count(b"Files ") == 1


@pytest.mark.slow
def test_a_script_that_replaces_itself(ddlprof: Execute, write_training: Write, tmp_path: Path) -> None:
    write_training(STEPS)
    (tmp_path / "start.py").write_text("import os, sys\nos.execv(sys.executable, [sys.executable, 'train.py'])\n")
    done = ddlprof("run", "--out", "run", "start.py")
    assert steps_of(tmp_path / "run") == [STEPS]
    assert done.stderr.count(b"Files ") == 1


@pytest.mark.skipif(os.name == "nt", reason="exec")
@pytest.mark.parametrize(
    "words",
    [["train.py"], pytest.param(["--", "sh", "-c", f"{sys.executable} train.py"], marks=pytest.mark.slow)],
    ids=["script", "child"],
)
def test_a_script_that_executes_itself_again_midway(words: list[str], ddlprof: Execute, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(AGAIN)
    done = ddlprof("run", "--out", "run", *words)
    assert (done.returncode, done.stdout) == (0, b"trained 40\n"), done.stderr.decode()
    ranks = load_run(tmp_path / "run").ranks
    assert [(rank.attempt, rank.step_count, rank.status) for rank in ranks] == [(0, 25, "ok"), (1, 40, "ok")]
    assert done.stderr.count(b"the script replaced itself") == 1
    assert b"another process" not in done.stderr
    assert done.stderr.count(b"Files ") == 1


@pytest.mark.parametrize("where", ["script", pytest.param("child", marks=pytest.mark.slow)])
def test_a_script_that_replaces_getpid(where: str, ddlprof: Execute, write_training: Write, tmp_path: Path) -> None:
    """A child becomes a rank later, so there it is replaced after the steps."""
    replaces = "import os\nos.getpid = lambda: 42\n"
    script = tmp_path / write_training(STEPS, replaces if where == "child" else "")
    if where == "script":
        script.write_text(replaces + script.read_text())
    words = ["--", "sh", "-c", f"{sys.executable} train.py"] if where == "child" else [script.name]
    done = ddlprof("run", "--out", "run", *words)
    assert done.returncode == 0, done.stderr.decode()
    assert steps_of(tmp_path / "run") == [STEPS]
    assert [rank.status for rank in load_run(tmp_path / "run").ranks] == ["ok"]


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="a shell")
def test_a_launcher_of_any_kind(ddlprof: Execute, write_training: Write, tmp_path: Path) -> None:
    write_training(STEPS)
    done = ddlprof("run", "--", "sh", "-c", f"{sys.executable} train.py; exit 6")
    assert done.returncode == 6
    [run] = (tmp_path / "ddlprof-runs").iterdir()
    assert steps_of(run) == [STEPS]
    assert done.stderr.count(b"Files ") == 1


@pytest.mark.slow
def test_python_before_the_script(execute: Execute, write_training: Write, tmp_path: Path) -> None:
    """As without the word, with the interpreter's own options."""
    python = Path(sys.executable)
    write_training(STEPS, "sys.exit(sys.flags.optimize + 6)\n")
    words = ["run", "--out", "run", "--", str(python), "-O", "train.py"]
    done = execute(sys.executable, "-m", "ddlprof", *words)
    assert done.returncode == 7
    assert steps_of(tmp_path / "run") == [STEPS]


@pytest.mark.skipif(os.name == "nt", reason="a shell")
def test_a_launcher_that_trains_nothing(ddlprof: Execute, tmp_path: Path) -> None:
    done = ddlprof("run", "--", "sh", "-c", "echo started; exit 3")
    assert (done.returncode, done.stdout) == (3, b"started\n")
    [line] = done.stderr.decode().splitlines()
    assert line.startswith("ddlprof: nothing that sh started here was seen to train")
    assert not any((tmp_path / "ddlprof-runs").iterdir())
    assert ddlprof("run", "--quiet", "--", "sh", "-c", "exit 3").stderr == b""


@pytest.mark.skipif(os.name == "nt", reason="a shell")
def test_a_disabled_launcher_is_plain(ddlprof: Execute, tmp_path: Path) -> None:
    done = ddlprof("run", "--", "sh", "-c", "echo $DDLPROF_JOB$PYTHONPATH", DDLPROF_DISABLE="1", PYTHONPATH="")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"\n", b"")
    assert not list(tmp_path.iterdir())


STARTUP = """\
import os, subprocess, sys
code = ("import sys, os; print(sys.path); print(sorted(m for m in sys.modules)); print(getattr(sys, 'theirs', None)); "
        "print('sitecustomize' in sys.modules and sys.modules['sitecustomize'].__file__)")
subprocess.run([sys.executable, "-c", code], check=True)
"""


@pytest.mark.parametrize(
    "theirs",
    [
        "sys.theirs = 1",
        "raise ValueError('theirs')",
        pytest.param(None, marks=pytest.mark.slow),
        pytest.param("import no_such_module", marks=pytest.mark.slow),
    ],
)
def test_python_starts_as_it_would(theirs: str | None, execute: Execute, tmp_path: Path) -> None:
    """In a child: its path, its modules, and a `sitecustomize` of the user's, whatever that does."""
    (tmp_path / "script.py").write_text(STARTUP)
    (tmp_path / "site").mkdir()
    if theirs:
        (tmp_path / "site" / "sitecustomize.py").write_text(f"import sys\n{theirs}\n")
    path = os.pathsep.join([str(tmp_path / "site"), os.environ.get("PYTHONPATH", "")])
    plain = execute(sys.executable, "script.py", PYTHONPATH=path)
    done = execute(sys.executable, "-m", "ddlprof", "run", "--quiet", "--out", "run", "script.py", PYTHONPATH=path)
    assert (done.stdout, done.returncode) == (plain.stdout, plain.returncode)
    errors = [ran.stderr.count(b"theirs") for ran in (plain, done)]
    assert errors[1] * 2 == errors[0] * 3  # of the script and its child; with us, of ddlprof too
