"""The calibration of the links inside a machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddlprof.model.manifest import Manifest
from tests.integration.dist.conftest import DDLPROF, Job, ranks_of

TRAINING = """
import torch
import torch.distributed as dist

torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(0)
print(torch.distributed.distributed_c10d._world.group_count, torch.rand(1).item())
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(5):
    net(torch.ones(2, 4)).sum().backward()
    optimizer.step()
dist.barrier()
dist.destroy_process_group()
"""

pytestmark = [pytest.mark.dist, pytest.mark.slow]


@pytest.mark.parametrize("options", [[], ["--no-calibrate"]], ids=" ".join)
def test_ranks_of_one_machine_time_their_links(job: Job, tmp_path: Path, options: list[str]) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    job(tmp_path, 2, [*DDLPROF, *options, "train.py"])
    (run,) = (tmp_path / "ddlprof-runs").iterdir()
    for rank in ranks_of(run, 2):
        assert rank.notes == []
        assert [point.ranks for point in rank.calibration] == [2] * len(rank.calibration)
        assert all(point.duration_ns > 0 for point in rank.calibration)
        timed = {point.op for point in rank.calibration}
        assert timed == (set() if options else {"allreduce", "allgather", "reducescatter"})
    calibration = Manifest.read(run).calibration
    assert calibration is None if options else calibration is not None and calibration["ranks"] == 2
