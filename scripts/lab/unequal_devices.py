"""Processes that stand for unequal GPUs: `python -m scripts.lab.unequal_devices RANK FOLDER`.

Each computes for real, on one thread, and then sleeps until the time that its device would take: so many FLOP/s, and
GB/s of memory for an update, the same on a busy machine as long as that is slow enough. The operating system limits its
memory (RLIMIT_DATA) to that of the device, beyond what the process had when its model was traced, without the
parameters: what is more fails as on a GPU. Messages go over gloo. `spec.json` in FOLDER says what to do; each process
writes `RANK.json`.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ddlprof.base.typed import decode
from ddlprof.base.worker_processes import WorkerProcesses
from ddlprof.extensions.hetero import apply_stages

SAMPLES = (1, 2, 4, 8)
"""The numbers of samples with which devices are timed."""
_SIZES = (1 << 14, 1 << 22)
_REPEATS = 7
_TIMEOUT_S = 900
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": str(1 << 18), "MALLOC_ARENA_MAX": "1"}
"""Large tensors are given back when they are freed, and threads have no pools of their own: memory is what is used."""


@dataclass(frozen=True)
class SlowDevice:
    """A device as a process."""

    name: str
    gflops: float
    """10^9 FLOP/s of its products."""
    memory_mib: float
    gb_s: float = 1.0
    """GB/s of its memory, which an update takes."""


@dataclass(frozen=True)
class NetSizes:
    """A net of blocks with a way around them."""

    width: int
    blocks: int
    rows: int
    """Of one sample."""


class Block(nn.Module):
    """Two products, as wide again between them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.wide, self.back = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Any) -> Any:
        """Adds what it computes to what it gets."""
        return x + self.back(torch.relu(self.wide(x)))


class Net(nn.Module):
    """Blocks between a product of the input and one of the mean row."""

    def __init__(self, sizes: NetSizes) -> None:
        super().__init__()
        self.begin = nn.Linear(16, sizes.width)
        self.blocks = nn.ModuleList(Block(sizes.width) for _ in range(sizes.blocks))
        self.end = nn.Linear(sizes.width, 4)

    def forward(self, x: Any) -> Any:
        """Scores of four classes."""
        x = self.begin(x)
        for block in self.blocks:
            x = block(x)
        return self.end(x.mean(1))


def large_net() -> Net:
    """One of 1.6 billion parameters, for `ddlprof features`: 24 GiB with gradients and the states of Adam."""
    return Net(NetSizes(4096, 24, 256))


class Slowed(nn.Module):
    """A module that takes the time of a device, forward and twice that backward."""

    def __init__(self, module: nn.Module, device: SlowDevice) -> None:
        super().__init__()
        self.module, self._anchor = module, [torch.zeros((), requires_grad=True)]
        weights = sum(p.numel() for p in module.parameters() if p.dim() > 1)
        self._row_s = 2 * weights / device.gflops / 1e9

    def forward(self, *inputs: Any) -> Any:
        """What the module returns."""
        seconds = inputs[0].shape[0] * inputs[0].shape[1] * self._row_s if inputs[0].dim() > 2 else 0.0
        module = self.module

        class Pass(torch.autograd.Function):
            @staticmethod
            def forward(context: Any, _: Any, *tensors: Any) -> Any:
                begin = time.perf_counter()
                context.given = [each.detach().requires_grad_(each.requires_grad) for each in tensors]
                with torch.enable_grad():
                    made = module(*context.given)
                context.made = made if isinstance(made, tuple) else (made,)
                _sleep_until(begin + seconds)
                found = tuple(each.detach() for each in context.made)
                return found if len(found) > 1 else found[0]

            @staticmethod
            def backward(context: Any, *gradients: Any) -> Any:
                begin = time.perf_counter()
                torch.autograd.backward(context.made, gradients)
                _sleep_until(begin + 2 * seconds)
                found = [each.grad for each in context.given]
                del context.made, context.given
                return None, *found

        run: Any = Pass.apply
        return run(self._anchor[0], *inputs)


_UPDATE_BYTES = 28
"""What Adam reads and writes for a parameter in fp32: itself, its gradient and two moments."""


def _update(optimizer: Any, module: nn.Module, device: SlowDevice) -> None:
    """An update in the time of the device."""
    begin = time.perf_counter()
    optimizer.step()
    moved = _UPDATE_BYTES * sum(p.numel() for p in module.parameters())
    _sleep_until(begin + moved / device.gb_s / 1e9)


def _sleep_until(moment: float) -> None:
    time.sleep(max(moment - time.perf_counter(), 0.0))


def main(rank: int, folder: Path) -> None:
    """What one process does."""
    torch.set_num_threads(1)
    spec = json.loads((folder / "spec.json").read_text())
    device, sizes = decode(SlowDevice, spec["devices"][rank]), decode(NetSizes, spec["net"])
    world = len(spec["devices"])
    store = dist.FileStore(str(folder / "store"), world)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=_TIMEOUT_S))
    dist.barrier()
    found = _measured(device, sizes) if spec["do"] == "measure" else _trained(spec, device, sizes)
    (folder / f"{rank}.json").write_text(json.dumps(found))
    if not found.get("failed"):
        dist.barrier()


def limit_memory(device: SlowDevice, parameters_bytes: int) -> None:
    """Lets this process have the memory of the device, of which parameters have some already."""
    limit = int(_status("VmData") - parameters_bytes + device.memory_mib * 2**20)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def _status(name: str) -> float:
    """A size in the status of this process, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return float(line.split()[1]) * 1024
    return 0.0


def measured_blocks(sizes: NetSizes, devices: int) -> int:
    """The blocks that each device measures together, about as many as a stage has: what a pass takes besides computing
    is in it once."""
    return max(sizes.blocks // devices, 1)


def _measured(device: SlowDevice, sizes: NetSizes) -> dict[str, Any]:
    """Seconds of some blocks at some numbers of samples, of their update, and of transfers between the first two."""
    blocks = measured_blocks(sizes, dist.get_world_size())
    some = Slowed(nn.Sequential(*(Block(sizes.width) for _ in range(blocks))), device)
    optimizer = torch.optim.Adam(some.parameters())
    phases: list[list[float]] = [[], [], []]
    for samples in SAMPLES:
        tries = []
        for _ in range(_REPEATS):
            x = torch.ones(samples, sizes.rows, sizes.width, requires_grad=True)
            begin = time.perf_counter()
            loss = some(x).sum()
            middle = time.perf_counter()
            loss.backward()
            end = time.perf_counter()
            _update(optimizer, some, device)
            tries.append((middle - begin, end - middle, time.perf_counter() - end))
        for phase, seconds in zip(phases, zip(*tries, strict=True), strict=True):
            phase.append(median(seconds))
    return {"forward_s": phases[0], "backward_s": phases[1], "update_s": median(phases[2]), "moved": _moved()}


def _moved() -> list[tuple[int, float]]:
    """The seconds in which the first two processes send each other so many bytes at once."""
    found = []
    rank = dist.get_rank()
    for size in _SIZES:
        tries = []
        for _ in range(_REPEATS):
            dist.barrier()
            if rank > 1:
                continue
            mine, theirs = torch.ones(size // 4), torch.empty(size // 4)
            begin = time.perf_counter()
            works = dist.batch_isend_irecv(
                [dist.P2POp(dist.isend, mine, 1 - rank), dist.P2POp(dist.irecv, theirs, 1 - rank)]
            )
            for work in works:
                work.wait()
            tries.append(time.perf_counter() - begin)
        found.append((size, median(tries) if tries else 0.0))
    return found


def _trained(spec: dict[str, Any], device: SlowDevice, sizes: NetSizes) -> dict[str, Any]:
    """The seconds and losses of steps with a plan; or that memory was too small."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(spec["batch"], sizes.rows, 16, generator=generator)
    y = torch.randint(0, 4, (spec["batch"],), generator=generator)
    torch.manual_seed(dist.get_rank())
    with torch.device("meta"):
        net = Net(sizes)
    plan = Path(spec["folder"]) / f"plan-{dist.get_rank()}.json"
    plan.write_text(json.dumps(spec["plan"]))
    steps_s: list[float] = []
    losses: list[float | None] = []
    stage = apply_stages(plan, net, nn.functional.cross_entropy, x, "cpu")
    stage.module = Slowed(stage.module, device)
    optimizer = torch.optim.Adam(stage.parameters(), lr=1e-4)
    had = sum(p.numel() * p.element_size() for p in stage.parameters())
    limit_memory(device, had)
    resident = _status("VmRSS") - had
    try:
        for _ in range(spec["steps"]):
            dist.barrier()
            begin = time.perf_counter()
            optimizer.zero_grad()
            losses.append(stage.step(x, y))
            _update(optimizer, stage.module, device)
            steps_s.append(time.perf_counter() - begin)
    except (MemoryError, RuntimeError) as error:
        if "memory" not in str(error).lower():
            raise
        return {"failed": " ".join(str(error).split())[-200:], "steps_s": steps_s}
    return {"steps_s": steps_s, "losses": losses, "used_mib": (_status("VmHWM") - resident) / 2**20}


def run(folder: Path, do: str, devices: list[SlowDevice], net: NetSizes, **more: Any) -> list[dict[str, Any]]:
    """Starts a process for each device, and returns what they wrote. Raises `WorkerFailed` if one fails."""
    folder.mkdir(parents=True)
    spec = {"do": do, "devices": [asdict(each) for each in devices], "net": asdict(net), "folder": str(folder)} | more
    (folder / "spec.json").write_text(json.dumps(spec))
    arguments = [[str(rank), str(folder)] for rank in range(len(devices))]
    with WorkerProcesses("scripts.lab.unequal_devices", arguments, ENVIRONMENT, folder / "log") as workers:
        workers.wait(_TIMEOUT_S)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(len(devices))]


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
    sys.stdout.flush()
    os._exit(0)  # gloo's threads outlive their group, and one that drops a tensor as the interpreter ends aborts torch
