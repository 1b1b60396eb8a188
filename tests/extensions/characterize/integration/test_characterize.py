"""`ddlprof characterize` on real scripts: the stalls come out where they were put."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddlprof.extensions.characterize.model import load_reads

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="drops files from Linux's page cache")

Completed = subprocess.CompletedProcess[bytes]

TWO_RANKS = str(Path(__file__).resolve().parents[3] / "golden" / "two-ranks")

TRAINING = """\
import os, sys, time
from pathlib import Path
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
STALL_S, WORKERS = float(sys.argv[1]), int(sys.argv[2])

class Files(Dataset):
    files = sorted(Path("data").iterdir())
    def __len__(self):
        return len(self.files)
    def __getitem__(self, index):
        time.sleep(STALL_S)
        return torch.tensor([float(self.files[index].read_bytes()[0])])

model = nn.Linear(1, 1)
if "RANK" in os.environ:
    torch.distributed.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
loader = DataLoader(Files(), batch_size=2, shuffle=True, num_workers=WORKERS)
while True:  # characterize ends it
    for batch in loader:
        optimizer.zero_grad()
        model(batch).sum().backward()
        time.sleep(0.005)
        optimizer.step()
"""

MAPPED = """\
import mmap, time
import torch
from torch.utils.data import DataLoader, Dataset

file = open("data/00", "rb")
memory = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)

class Rows(Dataset):
    def __len__(self):
        return 40
    def __getitem__(self, index):
        return torch.tensor([float(memory[index])])

model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
for _ in range(100):
    for batch in DataLoader(Rows(), batch_size=2):
        model(batch).sum().backward()
        time.sleep(0.003)
        optimizer.step()
"""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Forty files of 4 MiB: cold, one takes milliseconds to read."""
    folder = tmp_path / "data"
    folder.mkdir()
    for number in range(40):
        (folder / f"{number:02d}").write_bytes(bytes([number]) * (1 << 22))
    return folder


@pytest.fixture
def characterize(ddlprof: Callable[..., Completed]) -> Callable[..., dict[str, Any]]:
    def run(*words: str) -> dict[str, Any]:
        done = ddlprof("characterize", "-o", "runs", "--format", "table,json", *words)
        assert done.returncode == 0, done.stderr.decode()
        assert done.stdout.startswith(b"ddlprof  characterize train")
        content: dict[str, Any] = json.loads(b"{" + done.stdout.partition(b"\n{")[2])
        content["stalls"] = {stall["name"]: stall for stall in content["stalls"]}
        content["steps_s"] = {line["name"]: line["step_s"] for line in content["experiments"]}
        return content

    return run


@pytest.mark.slow
@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.nightly), 2])
def test_stalls_come_out_where_they_were_put(
    workers: int, characterize: Callable[..., dict[str, Any]], data: Path, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    stall_s = 0.01 * max(1, workers)  # of a sample; workers make two batches at a time
    content = characterize("--max-steps", "30", "train.py", str(stall_s), str(workers))
    steps_s, stalls = content["steps_s"], content["stalls"]
    assert set(steps_s) == {"all-replayed", "warm", "cold"}
    assert min(steps_s.values()) >= 0.005  # the script's own
    if not workers:  # which load beside the loop
        assert min(steps_s["warm"], steps_s["cold"]) >= 2 * stall_s + 0.005
        assert stalls["prep"]["direct_s"] >= 2 * stall_s
    assert stalls["prep"]["stall_s"] is not None
    reads = {name: load_reads(tmp_path / "runs" / name) for name in ("warm", "cold")}
    assert reads["warm"]
    assert reads["cold"]
    assert {Path(path).parent for path in reads["cold"].files} == {data}
    if reads["cold"].disk_bytes:  # the temporary directory is on a disk
        assert reads["cold"].disk_bytes > 0.9 * reads["cold"].asked_bytes
        assert reads["warm"].disk_bytes < 0.1 * reads["warm"].asked_bytes


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.dist
def test_two_ranks(characterize: Callable[..., dict[str, Any]], data: Path, tmp_path: Path) -> None:
    script = TRAINING.encode()
    (tmp_path / "train.py").write_bytes(script)
    content = characterize("--max-steps", "15", "--nproc-per-node", "2", "--skip", "cold", "train.py", "0.01", "0")
    assert (tmp_path / "train.py").read_bytes() == script
    assert {line["name"]: line["ranks"] for line in content["experiments"]} == {
        "one-replayed": 1, "all-replayed": 2, "warm": 2,
    }  # fmt: skip
    assert content["stalls"]["prep"]["stall_s"] is not None
    assert content["stalls"]["prep"]["direct_s"] >= 0.02
    assert content["stalls"]["interconnect"]["stall_s"] is not None
    assert content["stalls"]["fetch"]["stall_s"] is None
    folders = {path.name for path in (tmp_path / "runs").iterdir() if path.is_dir()}
    assert folders == {"warming", "one-replayed", "all-replayed", "warm"}
    assert {path.name for path in (tmp_path / "runs" / "warm").glob("*.reads")} == {"rank-0.reads", "rank-1.reads"}


@pytest.mark.slow
def test_a_mapped_file_says_that_it_stays_warm(
    characterize: Callable[..., dict[str, Any]], data: Path, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(MAPPED)
    content = characterize("--max-steps", "15", "--skip", "all-replayed,warm", "train.py")
    assert any(f"{data / '00'} mapped into memory" in remark for remark in content["remarks"])


def test_one_experiment(characterize: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for number in range(8):
        (tmp_path / "data" / str(number)).write_bytes(b"x")
    script = TRAINING.encode()
    (tmp_path / "train.py").write_bytes(script)
    content = characterize("--max-steps", "8", "--skip", "warm,cold", "train.py", "0.001", "0")
    assert (tmp_path / "train.py").read_bytes() == script
    assert content["steps_s"]["all-replayed"] >= 0.005
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"all-replayed", "all-replayed.log"}


def test_a_script_that_fails(ddlprof: Callable[..., Completed], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('so far')\nraise SystemExit(3)\n")
    done = ddlprof("characterize", "--out", "runs", "train.py")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        b"ddlprof: the script failed in warming (exit code 3): see runs/warming.log"
    )
    assert (tmp_path / "runs" / "warming.log").read_text() == "so far\n"


@pytest.mark.slow
def test_a_script_without_steps(ddlprof: Callable[..., Completed], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\n")
    done = ddlprof("characterize", "--out", "runs", "--skip", "warm,cold", "train.py")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        b"ddlprof: no step was measured in runs/all-replayed: see ddlprof report runs/all-replayed"
    )


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["gone.py"], "cannot open gone.py"),
        (["--skip", "hot", "train.py"], "unknown experiment 'hot'; known: one-replayed, all-replayed, warm, cold"),
        (["--skip", "all-replayed,warm,cold", "train.py"], "nothing is left to run"),
        (["--out", ".", "train.py"], "run directory . exists already"),
        (["--network-run", "nowhere", "train.py"], "nowhere: no such run directory"),
        (["--network-run", TWO_RANKS, "train.py"], "two-ranks has 2 ranks: compare it with --nproc-per-node 2"),
        (["--network-run", TWO_RANKS, "--nproc-per-node", "2", "--skip", "warm", "train.py"], "do not skip warm"),
        (["--max-steps", "0", "train.py"], "--max-steps"),
    ],
)
def test_errors_are_one_line(words: list[str], says: str, ddlprof: Callable[..., Completed], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    done = ddlprof("characterize", *words)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"ddlprof: ")
    assert done.stderr.count(b"\n") == 1
    assert says in done.stderr.decode()
