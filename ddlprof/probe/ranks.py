"""The ranks between which collectives are measured: those of torchrun, or processes started here on one machine.

`python -m ddlprof.probe.ranks RANK WORLD FOLDER SECONDS` is one of the processes started here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

from ddlprof.model.probed import Figure
from ddlprof.probe.collectives import Ranks, collectives, one_flow
from ddlprof.probe.device import Device

_PATIENCE_S = 90.0
"""Beyond the time to measure: starting Python and torch on a busy machine."""
_INTRA, _INTER = "intra", "inter"
_RESULT = "figures.json"
_ON_CPU = 2
"""Processes on a machine without GPUs."""


class RanksFailed(Exception):
    """Collectives could not be measured; the text is one sentence."""


def launched() -> bool:
    """Whether torchrun or the like started this process as one of several."""
    return os.environ.get("WORLD_SIZE", "1") != "1" and {"RANK", "MASTER_ADDR", "MASTER_PORT"} <= set(os.environ)


def inside(device: Device, seconds: float) -> list[Figure]:
    """Collectives between all GPUs of this machine, or between two processes on a CPU; empty with one GPU.

    Raises `RanksFailed`. Ends the processes that it starts.
    """
    world = device.torch.cuda.device_count() if device.is_gpu else _ON_CPU
    if world < 2:
        return []
    with tempfile.TemporaryDirectory(prefix="ddlprof-probe-") as folder:
        command = [sys.executable, "-m", "ddlprof.probe.ranks"]
        log = Path(folder, "log")
        started = []
        with log.open("wb") as errors:
            for rank in range(world):
                arguments = [*command, str(rank), str(world), folder, str(seconds)]
                started.append(subprocess.Popen(arguments, stdout=errors, stderr=errors, env=_environment(world)))
        _wait(started, seconds + _PATIENCE_S, log)
        found = [Figure(**row) for row in json.loads(Path(folder, _RESULT).read_text(encoding="utf-8"))]
    if not found:
        raise RanksFailed("the backend did none of them")
    return found


class ProbeRanks:
    """The ranks that torchrun started. Raises `RanksFailed` where they do not find each other."""

    def __init__(self, torch: Any, seconds: float) -> None:
        """`seconds` is how long the first rank may measure while the others wait."""
        import torch.distributed as dist

        self.dist = dist
        try:
            dist.init_process_group(_backends(torch), timeout=timedelta(seconds=2 * seconds + 600))
            self.rank, self.world = dist.get_rank(), dist.get_world_size()
            mine = os.environ.get("GROUP_RANK", "0"), int(os.environ.get("LOCAL_RANK", "0"))
            self._places: list[Any] = [None] * self.world
            dist.all_gather_object(self._places, mine)
        except Exception as error:
            raise RanksFailed(f"the ranks did not find each other: {_line(str(error))}") from None
        self.nodes = sorted({node for node, _ in self._places})

    def wait(self) -> None:
        """Until all ranks are here, without work for a GPU."""
        self.dist.all_reduce(self._token())

    def figures(self, device: Device, seconds: float) -> list[Figure]:
        """Collectives inside the first machine, and between machines where there are several. Called by all ranks."""
        found: list[Figure] = []
        several = len(self.nodes) > 1
        members = [[rank for rank, (node, _) in enumerate(self._places) if node == each] for each in self.nodes]
        groups = [self.dist.new_group(ranks) for ranks in members]
        for ranks, group in zip(members, groups, strict=True):
            if self.rank in ranks and len(ranks) > 1:
                share = seconds / 3 if several else seconds
                found += collectives(device, self.dist, Ranks(group, len(ranks), _INTRA), share)
        if several:
            found += collectives(device, self.dist, Ranks(None, self.world, _INTER), seconds / 2)
            peers = (members[0][0], members[1][0])
            if self.rank in peers:
                found += one_flow(device, self.dist, peers, seconds / 6)
        self.wait()
        return found

    def close(self) -> None:
        """Leaves the group."""
        self.dist.destroy_process_group()

    def _token(self) -> Any:
        import torch

        return torch.zeros(1)


def _backends(torch: Any) -> str:
    return "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"


def _environment(world: int) -> dict[str, str]:
    """One thread each on a processor: the ranks would take the cores from each other."""
    return {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"), "LOCAL_WORLD_SIZE": str(world)}


def _wait(started: list[subprocess.Popen[bytes]], patience_s: float, log: Path) -> None:
    """Waits for all. Ends the others where one fails or none does in time, and raises `RanksFailed`."""
    until = time.monotonic() + patience_s
    try:
        while any(process.poll() is None for process in started):
            if any(process.poll() for process in started):
                break
            if time.monotonic() > until:
                raise RanksFailed(f"the processes did not finish within {patience_s:.0f} s")
            time.sleep(0.05)
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
            process.wait()
    if any(process.returncode for process in started):
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["no message"]
        raise RanksFailed(f"a process failed: {_line(lines[-1])}")


def _line(text: str) -> str:
    """The beginning of a text, on one line."""
    return " ".join(text.split())[:200]


def _main(rank: int, world: int, folder: str, seconds: float) -> None:
    import torch
    import torch.distributed as dist

    device = Device(torch, rank)
    dist.init_process_group(
        _backends(torch), init_method=f"file://{folder}/store", rank=rank, world_size=world,
        timeout=timedelta(seconds=seconds + _PATIENCE_S),
    )  # fmt: skip
    figures = list(collectives(device, dist, Ranks(None, world, _INTRA), seconds))
    if rank == 0:
        text = json.dumps([asdict(figure) for figure in figures])
        Path(folder, _RESULT).write_text(text, encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    _main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], float(sys.argv[4]))
