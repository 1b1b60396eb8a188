"""Process groups that come and go."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddlprof.model.records import MISSING
from tests.integration.dist.conftest import DDLPROF, HERE, Job, ranks_of
from tests.integration.dist.unseen import SEEN, UNSEEN

pytestmark = [pytest.mark.dist, pytest.mark.slow]

AGAIN = """\
import os
import torch
import torch.distributed as dist

net = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for phase in range(2):
    store = dist.FileStore(f"{os.getcwd()}/store-{phase}", 2)
    dist.init_process_group("gloo", store=store, rank=int(os.environ["RANK"]), world_size=2)
    for _ in range(3):
        net(torch.ones(2, 4)).sum().backward()
        dist.all_reduce(net.weight.grad)
        optimizer.step()
    dist.barrier()
    dist.destroy_process_group()
"""


def test_a_group_made_again(job: Job, tmp_path: Path) -> None:
    (tmp_path / "again.py").write_text(AGAIN)
    job(tmp_path, 2, [*DDLPROF, "again.py"])
    (run,) = (tmp_path / "ddlprof-runs").iterdir()
    for rank in ranks_of(run, 2):
        assert rank.notes == []
        assert len(rank.steps) == 6
        assert min(rank.steps["comm_ns"]) > 0
        # The barrier at the end of the first phase is part of the step after it.
        assert [int((rank.collectives.row == step).sum()) for step in range(6)] == [1, 1, 1, 2, 1, 1]


def test_collectives_that_only_torch_counted_are_not_zero(job: Job, tmp_path: Path) -> None:
    job(tmp_path, 2, [*DDLPROF, "--no-calibrate", "--out", "run", str(HERE / "unseen.py")])
    for rank in ranks_of(tmp_path / "run", 2):
        comm = rank.steps["comm_ns"].tolist()
        assert min(comm[:SEEN]) > 0
        assert comm[SEEN:] == [MISSING] * UNSEEN
        (note,) = rank.notes
        assert note.source == "comm"
        assert f"1 in step {SEEN}," in note.message
