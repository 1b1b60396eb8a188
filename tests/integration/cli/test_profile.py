"""`ddlprof.profile()` and `ddlprof.recent_means()` in programs of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.processes import PATIENCE_S, Processes, free_port

Execute = Callable[..., subprocess.CompletedProcess[bytes]]

TRAINING = """\
import json, os, sys, threading, time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import ddlprof

torch.set_num_threads(1)
torch.manual_seed(0)
if "--distributed" in sys.argv:
    torch.distributed.init_process_group("gloo")
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
if "--distributed" in sys.argv:
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(64, 8), torch.randint(0, 2, (64,))), batch_size=4)


def train(steps):
    done = 0
    while True:
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            done += 1
            if done == steps:
                return


"""
CASES = """\
found = {}
with ddlprof.profile() as first:
    train(40)
    time.sleep(0.6)
    found["means"] = ddlprof.recent_means(20, prefix="x/")
    try:
        first.run
    except ddlprof.DdlprofError as error:
        found["too early"] = str(error)
found["means after"] = ddlprof.recent_means()
found["first"] = [first.note, len(first.run.steps), first.run.ranks["status"].tolist()]
found["card"] = str(first)
found["html"] = [first._repr_html_(), first.run._repr_html_()]
found["patched"] = torch.optim.SGD.step.__module__, nn.Module.__call__.__module__

try:
    with ddlprof.profile("second", name="mine") as second, ddlprof.profile("inner") as inner:
        train(30)
        raise ZeroDivisionError
except ZeroDivisionError:
    found["second"] = [second.run.manifest.name, len(second.run.steps), second.run.ranks["status"].tolist()]
found["inner"] = [inner.note, str(inner.directory), os.path.exists("inner")]

with ddlprof.profile("thread") as third:
    thread = threading.Thread(target=train, args=(20,))
    thread.start()
    thread.join()
found["thread"] = len(third.run.steps)

try:
    with ddlprof.profile("second"):
        found["entered"] = True
except ddlprof.DdlprofError as error:
    found["used"] = str(error)

os.environ["DDLPROF_DISABLE"] = "1"
with ddlprof.profile("disabled") as disabled:
    train(5)
found["disabled"] = [disabled.note, os.path.exists("disabled"), str(disabled), disabled._repr_html_()]
found["sum"] = sum(p.sum().item() for p in model.parameters())
sys.stdout.write(json.dumps(found))
"""


PLAIN = """\
for steps in (40, 30, 20, 5):
    train(steps)
sys.stdout.write(json.dumps(sum(p.sum().item() for p in model.parameters())))
"""


def run(execute: Execute, directory: Path, code: str, *before: str, **environment: str) -> tuple[str, str]:
    (directory / "own.py").write_text(TRAINING + code)
    done = execute(sys.executable, *before, "own.py", OMP_NUM_THREADS="1", **environment)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode(), done.stderr.decode()


@pytest.mark.slow
def test_blocks_in_one_process(execute: Execute, tmp_path: Path) -> None:
    out, err = run(execute, tmp_path, CASES)
    found = json.loads(out)
    assert found["first"] == [None, 40, ["ok"]]
    assert found["card"].startswith("ddlprof  own (Sequential)")
    assert "Files    ddlprof-runs/own-" in found["card"]
    assert all("compute" in html and "<script" not in html and "://" not in html for html in found["html"])
    means = found["means"]
    assert {"x/step_s", "x/compute_s", "x/data_s", "x/other_s", "x/compute_forward_s"} <= set(means)
    classes = sum(means[f"x/{name}_s"] for name in ("compute", "data", "h2d", "comm", "other"))
    assert classes == pytest.approx(means["x/step_s"])
    assert found["means after"] == {}
    assert "after it" in found["too early"]
    assert found["patched"] == ["torch.optim.sgd", "torch.nn.modules.module"]
    assert found["second"] == ["mine", 30, ["exception"]]
    note, directory, exists = found["inner"]
    assert "already" in note
    assert Path(directory).name == "second"
    assert not exists
    assert found["thread"] == 20
    assert "second" in found["used"]
    assert "entered" not in found
    note, exists, card, html = found["disabled"]
    assert "DDLPROF_DISABLE" in note
    assert not exists
    assert "DDLPROF_DISABLE" in card
    assert "DDLPROF_DISABLE" in html
    assert err.count("ddlprof: ") == err.count("\n") == 2  # of the inner and of the disabled block
    plain, _ = run(execute, tmp_path, PLAIN)
    assert json.loads(plain) == found["sum"]


def test_under_ddlprof_run_the_block_is_part_of_that_run(execute: Execute, tmp_path: Path) -> None:
    code = """\
with ddlprof.profile("own") as profile:
    train(40)
    time.sleep(0.6)
means = ddlprof.recent_means()
sys.stdout.write(json.dumps([profile.note, str(profile.directory), means["step_s"], os.path.exists("own")]))
"""
    out, err = run(execute, tmp_path, code, "-m", "ddlprof", "run", "--quiet", "--out", "outer")
    note, directory, step_s, exists = json.loads(out)
    assert "already" in note
    assert directory == str(tmp_path / "outer")
    assert step_s > 0
    assert not exists
    assert err.count("\n") == 1


def test_without_a_session_there_are_no_means_and_nothing_heavy_is_imported(execute: Execute) -> None:
    code = "import ddlprof, sys; print(ddlprof.recent_means(), {'torch', 'numpy', 'pandas', 'rich'} & set(sys.modules))"
    assert execute(sys.executable, "-c", code).stdout == b"{} set()\n"


@pytest.mark.slow
@pytest.mark.dist
def test_the_ranks_of_a_group_that_was_made_before_are_one_run(processes: Processes, tmp_path: Path) -> None:
    code = """\
with ddlprof.profile("both") as profile:
    train(40)
torch.distributed.barrier()
if torch.distributed.get_rank() == 0:
    time.sleep(0.5)
    table, strategy = profile.run.ranks, profile.run.manifest.training.strategy
    sys.stdout.write(json.dumps([table["rank"].tolist(), table["steps"].tolist(), strategy]))
torch.distributed.barrier()
torch.distributed.destroy_process_group()
"""
    (tmp_path / "own.py").write_text(TRAINING + code)
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    ranks = [
        processes.start(
            sys.executable, "own.py", "--distributed", stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(2)
    ]  # fmt: skip
    (output, errors), (_, others) = (rank.communicate(timeout=PATIENCE_S) for rank in ranks)
    assert [rank.returncode for rank in ranks] == [0, 0], errors + others
    assert json.loads(output) == [[0, 1], [40, 40], "ddp"]
