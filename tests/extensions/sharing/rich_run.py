"""A run with every kind of record, for the tests of what is shared of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from ddlprof.model.manifest import LayoutFacts
from ddlprof.model.operators import Operator, OperatorsFile, StepMemory, StepOperators
from ddlprof.model.records import (
    Aggregate,
    Calibration,
    ClockReading,
    CollectiveShape,
    CollectiveTimes,
    Drop,
    End,
    Flag,
    GroupFacts,
    LoaderCost,
    WindowRow,
)
from tests.golden.runs import MS, Record, header, manifest, step, with_collectives, write_rank


def rich_run(directory: Path, token: str) -> Path:
    """A run of two attempts, two machines and every kind of record, with a token in each text."""
    groups = (f"{token}-group", f"{token}:0>1#3", "0", f"{token}-company")
    shapes = [CollectiveShape(group, "allreduce", 400, 2) for group in groups]
    times = [CollectiveTimes(1000, 1200 + 100 * n, 1000, 50) for n in range(4)]
    for attempt in range(2):
        for rank in range(2):
            head = replace(
                header(rank, 2, attempt, node=f"{token}{rank}", device="cuda"),
                host=f"{token}.example.com", launcher=token, job_id=token, pid=987_654_321,
            )  # fmt: skip
            rows = [with_collectives(step(n, 5000 if n == 39 else 8, comm_ms=1), (n, n, n, n)) for n in range(40)]
            records: list[Record] = [
                WindowRow(1, 2, 30 * MS, 20 * MS, MS, 7), Calibration(2, 1024, 20_000, "allreduce"),
                ClockReading(1 - rank, 5, 9), LoaderCost(3, 4, 5, 6, 7), Drop("comm", token, token, 3, token),
                GroupFacts(f"{token}-group", "tensor", "", 2), GroupFacts(token, "", "context"),
                GroupFacts("0", token), GroupFacts(f"{token}-company", "data", "expert"),
                Aggregate(40, 2, 20 * MS, 16 * MS, 2 * MS, None, None, 0, 0, 2 * MS, 2, 64, int(Flag.CHECKPOINT)),
                End("ok", 0, 900 * MS),
            ]  # fmt: skip
            lines = [
                json.dumps(["l", 0, f"/home/{token}/train.py:3 {token}", "logging"]) + "\n", '["q",20,0,30]\n',
                json.dumps(["n", token, token]) + "\n", json.dumps(["z", token]) + "\n",
            ]  # fmt: skip
            write_rank(directory, head, rows, shapes, times * 40, records, lines)
    host = {
        "platform": token, "cpu_model": token, "logical_cores": 8, "available_cores": 4, "gpus": [token, "NVIDIA A10G"],
        "gpu_driver": token, "gpu_architectures": [token, "gfx942"], "instance_type": token, token: token,
        "memory_bytes": 5,
    }  # fmt: skip
    described = replace(
        manifest(2), name=token, argv=[token, f"--{token}"], job_id=token, working_directory=token, host=host,
        versions={"torch": token, token: "1.0", "python": "3.11.7", "cuda": f"12.1+{token}"},
        calibration={"seconds": 1.5, token: token},
    )  # fmt: skip
    described.model.name = token
    described.layout = LayoutFacts(tensor=2, data_replicate=3)
    for name in ("optimizer", "precision", "strategy", "backend", "comm_hook"):
        setattr(described.training, name, token)
    described.write(directory)
    operators = (Operator("product", "forward", token, token, (1, 2, 3, 4), 5.0, 6.0, 1.0, 2.0, 1),)
    memory = StepMemory(parameter_bytes=1.0, points=((1.0, 2.0),))
    OperatorsFile(token, StepOperators(4, token, operators, token, memory=memory, unseen=(token,))).write(directory)
    return directory
