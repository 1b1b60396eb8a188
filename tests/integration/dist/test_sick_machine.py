"""A real job on two hosts of which one begins to swap: its counter is a file that the test mounts over the kernel's."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ddlprof.analysis.run import analyse
from ddlprof.report.run.data import build_report
from ddlprof.report.run.summary import summarise_run
from ddlprof.store import load_run
from scripts.lab.hosts import MASTER_PORT, Lab, missing
from tests.golden.runs import NOW_UNIX_NS
from tests.integration.processes import PATIENCE_S

pytestmark = [pytest.mark.dist, pytest.mark.root, pytest.mark.slow]

TRAIN = """\
import os, pathlib, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, begin = dist.get_rank(), time.monotonic()
model = DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
go_on, sick, swapped = torch.ones(1), False, 1000
while go_on:
    loss = model(torch.randn(8, 64)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    sick = time.monotonic() - begin > 4
    time.sleep(0.25 if sick and rank == 1 else 0.05)
    if sick and rank == 1:
        swapped += 100
        pathlib.Path(os.environ["VMSTAT"]).write_text(f"pswpin {swapped}\\npswpout 0\\n")
    go_on.fill_(time.monotonic() - begin < 50)
    dist.broadcast(go_on, 0)
dist.destroy_process_group()
"""


def test_the_counter_that_moves_while_the_rank_is_late_is_named(tmp_path: Path) -> None:
    if reason := missing():
        pytest.skip(reason)
    (tmp_path / "train.py").write_text(TRAIN)
    with Lab(2) as lab:
        ranks = []
        for host in (0, 1):
            vmstat = tmp_path / f"vmstat-{host}"
            vmstat.write_text("pswpin 1000\npswpout 0\n")
            mounted = ["unshare", "--mount", "sh", "-c", 'mount --bind "$VMSTAT" /proc/vmstat && exec "$@"', "sh"]
            words = [sys.executable, "-m", "ddlprof", "run", "--quiet", "--out", str(tmp_path / "run")]
            ranks.append(
                lab.start(
                    host, [*mounted, *words, str(tmp_path / "train.py")], VMSTAT=str(vmstat), RANK=str(host),
                    WORLD_SIZE="2", LOCAL_RANK="0", MASTER_ADDR=lab.address(0), MASTER_PORT=str(MASTER_PORT),
                    OMP_NUM_THREADS="1",
                )
            )  # fmt: skip
        assert [rank.wait(timeout=PATIENCE_S) for rank in ranks] == [0, 0]
    run = load_run(tmp_path / "run")
    attempts = analyse(run)
    report = build_report(run, attempts, NOW_UNIX_NS)
    (finding,) = [each for each in report.findings if each.rule == "sick_machine"]
    assert finding.ranks == (1,)
    assert "pages swapped in or out" in finding.title
    summary = summarise_run(run, attempts, report)
    assert summary.late_host == "lab-1"
    assert summary.moved[0] == "swap_pages"
