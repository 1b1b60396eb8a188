"""A training of 1 to 4 gloo ranks with one fault, or with one long pause that is none: `python hangs.py NAME [DIR]`.

A line with a comment `# NAME` is where the rank that is at fault is when the job stands still.
"""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

AT = 30
"""The step at which it happens."""
STEPS = 45
LONG_S = float(os.environ.get("LONG_S", "6"))
DDP = "DDP" in os.environ
"""Whether DDP exchanges the gradients, within `backward`, before which it then happens."""
name = sys.argv[1]
folder = Path(sys.argv[2]) if len(sys.argv) > 2 else Path()
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo", timeout=timedelta(seconds=float(os.environ.get("TIMEOUT_S", "120"))))
own = rank == min(1, world - 1)
"""Whether this rank is the one at fault."""
event = threading.Event()
lock, other_lock = threading.Lock(), threading.Lock()


class Rows(Dataset[torch.Tensor]):
    """Random rows; its workers do what `name` says."""

    def __len__(self) -> int:
        return 8 * (AT if name == "short-data" and own else STEPS)

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 8 * AT and own:
            if name == "worker-killed":
                os.kill(os.getpid(), signal.SIGKILL)
            elif name == "worker-blocked":
                threading.Event().wait()
            elif name == "slow-batch":
                compute(LONG_S)
        return torch.randn(64)


def compute(seconds: float) -> None:
    """Keeps a core busy where no hook looks."""
    end, value = time.monotonic() + seconds, 1.0
    while time.monotonic() < end:
        value = sum(number * value % 7 for number in range(1000))


class SlowFile:
    """A file on a storage that takes `LONG_S` and shows no sign of life."""

    def __init__(self) -> None:
        self.left_s = LONG_S

    def write(self, data: bytes) -> int:
        """Takes its time over the first bytes."""
        time.sleep(self.left_s)
        self.left_s = 0.0
        return len(data)

    def flush(self) -> None:
        """Nothing is held back."""


def produce(batches: Any) -> None:
    """Makes batches in a process of its own, and dies at some time."""
    for _ in range(AT):
        batches.put(b"x")
    os.kill(os.getpid(), signal.SIGKILL)


def log_forever() -> None:
    """Holds one lock and wants the other."""
    with other_lock:
        event.set()
        with lock:
            pass


def wait_for_work() -> None:
    """A thread that never ends."""
    threading.Event().wait()


def metric(size: int = 3) -> None:
    """Adds a number of all ranks, as a training does for its log."""
    dist.all_reduce(torch.ones(size))  # shape


def fail() -> None:
    """The error of a script."""
    raise ValueError("loss is not finite")  # exception


def wait_for_something() -> None:
    """What this process, or another one, would have to do."""
    if name == "sleeps":
        time.sleep(600)  # sleeps
    elif name == "polls":
        while not event.is_set():
            time.sleep(0.01)  # polls
    elif name == "file-lock":
        with open(folder / "lock", "w") as one, open(folder / "lock", "w") as other:
            fcntl.flock(one, fcntl.LOCK_EX)
            fcntl.flock(other, fcntl.LOCK_EX)  # file-lock
    elif name == "socket":
        one_end, other_end = socket.socketpair()
        one_end.recv(1)  # socket
        other_end.close()
    elif name == "comes-late":
        time.sleep(LONG_S)  # comes-late


def fault(model: torch.nn.Module) -> None:
    """What happens at step `AT` on the rank at fault."""
    if name == "early-return":
        threading.Event().wait()  # early-return
    elif name == "early-exit":
        sys.exit(0)
    elif name in ("sleeps", "polls", "file-lock", "socket", "comes-late"):
        wait_for_something()
    elif name == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif name == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif name == "exception":
        fail()
    elif name == "locks":
        with lock:
            threading.Thread(target=log_forever, name="logger", daemon=True).start()
            event.wait()
            other_lock.acquire()  # locks
    elif name == "join":
        thread = threading.Thread(target=wait_for_work, name="saver", daemon=True)
        thread.start()
        thread.join()  # join
    elif name == "disk-full-error":
        with open(folder / "model.bin", "wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 16))  # disk-full-error
    elif name == "disk-full":
        while True:
            try:
                torch.save(torch.zeros(1 << 20), folder / "model.pt")
                break
            except (OSError, RuntimeError):
                time.sleep(0.2)  # disk-full
    elif name == "pause-checkpoint":
        slow: Any = SlowFile()
        torch.save(model.state_dict(), slow)
    elif name == "pause-evaluation":
        compute(LONG_S)
    elif name == "pause-modules":
        end = time.monotonic() + LONG_S
        with torch.no_grad():
            while time.monotonic() < end:
                model.eval()(torch.randn(256, 64))
                time.sleep(0.2)
        model.train()
    elif name == "pause-write":
        for _ in range(int(LONG_S * 5)):
            (folder / f"state-{rank}.bin").write_bytes(bytes(8 << 20))
            time.sleep(0.2)
    elif name == "pause-compile":
        compiled = torch.compile(torch.nn.Sequential(*[torch.nn.Linear(16, 16) for _ in range(24)]))
        compiled(torch.randn(4, 16)).sum().backward()


def communicate(step: int, model: torch.nn.Module, groups: list[Any]) -> None:
    """The collectives of one step, wrong on one rank from step `AT` on."""
    here = own and step == AT
    if not (name == "skip" and here):
        metric()
    if name == "shape" and here:
        metric(5)
    elif name == "kind" and here:
        dist.broadcast(torch.ones(7), 0)  # kind
    else:
        metric(7)
    if name in ("order", "order-async"):
        works = []
        for group in reversed(groups[:2]) if here else groups[:2]:
            if name == "order":
                dist.all_reduce(torch.ones(9), group=group)  # order
            else:
                works.append(dist.all_reduce(torch.ones(9), group=group, async_op=True))
                works[-1].wait()  # order-async
    if name == "pair" and groups[2] is not None:
        if rank == world - 1 and step == AT:
            threading.Event().wait()  # pair
        dist.all_reduce(torch.ones(11), group=groups[2])
    if name == "message" and world > 1:
        if own:
            if step == AT:
                event.wait()  # message
            dist.send(torch.ones(4), (rank + 1) % world)
        elif rank == 2 % world:
            dist.recv(torch.ones(4), 1)
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    if name == "extra" and here:
        metric(13)


def batches() -> Iterator[Any]:
    """The batches of the training; of a loader with workers where the fault is in them."""
    if name in ("worker-killed", "worker-blocked", "slow-batch", "short-data"):
        yield from DataLoader(Rows(), 8, num_workers=0 if name == "short-data" else 1)  # worker-killed worker-blocked
    elif name == "producer-killed" and own:
        queue: Any = multiprocessing.get_context("fork").Queue(2)
        multiprocessing.get_context("fork").Process(target=produce, args=(queue,), daemon=True).start()
        for _ in range(STEPS):
            queue.get()  # producer-killed
            yield torch.randn(8, 64)
    else:
        for _ in range(STEPS):
            yield torch.randn(8, 64)


def main() -> None:
    """Trains, and evaluates at the end."""
    torch.manual_seed(0)
    model: torch.nn.Module = torch.nn.Linear(64, 64)
    if DDP:
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    everybody = list(range(world))
    groups = [dist.new_group(everybody), dist.new_group(everybody)]
    pairs = [dist.new_group(everybody[begin : begin + 2], group_desc="tensor_parallel") for begin in range(0, world, 2)]
    groups.append(pairs[rank // 2])
    for step, batch in enumerate(batches()):
        optimizer.zero_grad()
        if DDP and step == AT and own:
            fault(model)
        model(batch).square().mean().backward()
        if not DDP and step == AT and (own or name == "pause-all"):
            fault(model)
        if step == AT and name == "pause-all":
            compute(LONG_S)
        communicate(step, model, groups)
        optimizer.step()
        time.sleep(2.0 if name == "slow-steps" and step > AT else 0.01)
        if step == AT + 8 and name == "slow-steps":
            break
        if step == AT and name == "network":
            (folder / f"ready-{rank}").touch()
    if name == "last-barrier" and own:
        threading.Event().wait()  # last-barrier
    dist.barrier()  # short-data
    if name == "pause-end":
        compute(LONG_S)


if __name__ == "__main__":
    main()
