"""One of the two processes of a check: `python -m ddlprof.extensions.hetero.check.worker RANK FOLDER`.

Both processes measure how fast they compute and reduce, and plan. Then, in many rounds, they measure again and train
one step with each split. A step is predicted from the measurements right before and after its round, because a
machine's speed changes within a minute. Rank 0 writes what was measured.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

from ddlprof.base.cores import available_cores
from ddlprof.base.typed import decode
from ddlprof.extensions.hetero.check.run import (
    BY_SPEED,
    CORES,
    EVEN,
    PLAN,
    RESULT,
    SPEC,
    MeasuredSpeeds,
    Model,
    problem,
)
from ddlprof.extensions.hetero.parameter_server import Served
from ddlprof.extensions.hetero.plan_file import PLAN_SCHEMA, GroupExchange, PlanFile, RankShare
from ddlprof.extensions.hetero.problem import SplitStrategy
from ddlprof.extensions.hetero.search import EVEN_AR, SPEED_AR, search, uniform
from ddlprof.extensions.hetero.training import apply

STORE = "store"
_WIDTH, _ROWS = 512, 4
"""The width of the products, and the rows of a sample. Products with very few rows would take longer per row."""
_SAMPLES_OF_ONE = 32
"""The number of samples with which one product is timed."""
_MEASURED = (1 / 8, 1 / 4, 1 / 2, 3 / 4)
"""The shares of the batch with which both processes are timed."""
_UNDER_WAY = 4
"""The number of all-reduces that are timed together, as several are under way in backward."""
_LEAST_FIRST = 5
"""The number of measurements before the plan is made."""
_WARM_UP = 2
_TIMEOUT_S = 120
_EVALUATIONS = 600


def main(rank: int, folder: Path) -> None:
    """Everything that one process does."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    spec = json.loads((folder / SPEC).read_text(encoding="utf-8"))
    store = dist.FileStore(str(folder / STORE), 2)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=_TIMEOUT_S))
    free = (available_cores() or 1) > CORES  # at least one core for the threads that exchange
    _take_core(rank)
    model = decode(Model, _agreed(dist, lambda: asdict(_sized(torch, spec))))
    gauge = _Gauge(torch, dist, model, rank, free)
    first = max(spec["rounds"] // 2, _LEAST_FIRST)
    for _ in range(first):
        gauge.measure()
    strategies = _strategies(dist, model, gauge.speeds())
    trainings = {
        name: _Training(torch, dist, model, rank, each, spec["rounds"] + _WARM_UP) for name, each in strategies.items()
    }
    for _ in range(spec["rounds"] + _WARM_UP):
        gauge.measure()
        for training in trainings.values():
            training.step()
    gauge.measure()
    begin = first + _WARM_UP
    found = {
        "model": asdict(model),
        "strategies": {name: asdict(each) for name, each in strategies.items()},
        "speeds": [asdict(gauge.speeds(at, at + 2)) for at in range(begin, begin + spec["rounds"])],
        "steps_s": {name: training.steps_s[_WARM_UP:] for name, training in trainings.items()},
    }
    if rank == 0:
        (folder / RESULT).write_text(json.dumps(found), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


def _take_core(rank: int) -> None:
    """Binds the computing thread to a core that the other process's computing thread does not use.

    The threads that exchange exist already and use any core: if all threads of a process were on one core, they would
    wait for each other's time slices.
    """
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, [sorted(os.sched_getaffinity(0))[rank]])


def _agreed(dist: Any, make: Callable[[], Any]) -> Any:
    """Makes something on rank 0 and gives it to all ranks."""
    values = [make() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(values)
    return values[0]


def _sized(torch: Any, spec: dict[str, Any]) -> Model:
    """The net whose fast process computes about `busy_s` seconds for half of a batch."""
    net = _net(torch, Model((4,), (8,), 1, _SAMPLES_OF_ONE), 0)
    seconds = median(sum(_timed(torch, net, _SAMPLES_OF_ONE)[:2]) for _ in range(8)) / 8
    whole = max(spec["busy_s"] / seconds * _SAMPLES_OF_ONE / (spec["batch"] / 2), len(spec["shares"]))
    repeats = tuple(max(round(share * whole), 1 if share else 0) for share in spec["shares"])
    return Model(tuple(spec["gradient_bytes"]), repeats, spec["slow"], spec["batch"])


def _net(torch: Any, model: Model, rank: int) -> Any:
    """A module for each group: products that need no gradients themselves, and a parameter of the group's size."""

    fixed = torch.eye(_WIDTH)  # values stay as large as they are: tiny numbers are slow

    class Group(torch.nn.Module):  # type: ignore[misc]
        def __init__(self, size: int, repeats: int) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(max(size // 4, 1)))
            self.repeats = repeats * (model.slow if rank else 1)

        def forward(self, x: Any) -> Any:
            x = x + self.weight.mean()
            for _ in range(self.repeats):
                x = torch.relu(x @ fixed)
            return x

    torch.manual_seed(0)
    groups = [Group(size, repeats) for size, repeats in zip(model.gradient_bytes, model.repeats, strict=True)]
    return torch.nn.Sequential(*groups)


def _timed(torch: Any, net: Any, samples: int) -> tuple[float, float, float]:
    """Seconds of forward, backward and update, without communication."""
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    optimizer.zero_grad(set_to_none=False)
    x = torch.ones(samples, _ROWS, _WIDTH, requires_grad=True)
    begin = time.perf_counter()
    loss = net(x).mean()
    forward = time.perf_counter()
    loss.backward()
    backward = time.perf_counter()
    optimizer.step()
    return forward - begin, backward - forward, time.perf_counter() - backward


def _others_s() -> float:
    """The processor time of this process's other threads, which exchange."""
    return time.process_time() - time.thread_time()


@dataclass
class _Bucket:
    """What DistributedDataParallel passes to the hook; see `torch.distributed.GradBucket`."""

    parameter: Any
    last: bool = False

    def buffer(self) -> Any:
        return self.parameter.detach()

    def parameters(self) -> list[Any]:
        return [self.parameter]

    def is_last(self) -> bool:
        return self.last


class _Gauge:
    """Measures how fast both processes compute at the same time, as in training, and how fast the link is.

    It knows no split: later trainings are predicted from these measurements alone. `free`: whether there are cores for
    exchanges besides those that compute.
    """

    def __init__(self, torch: Any, dist: Any, model: Model, rank: int, free: bool) -> None:
        self._torch, self._dist, self._free = torch, dist, free
        self._net = _net(torch, model, rank)
        self._samples = tuple(max(int(share * model.batch), 1) for share in _MEASURED)
        self._sizes = 1 << 16, max(*model.gradient_bytes, 1 << 20)
        self._phases: list[list[tuple[float, float, float]]] = [[] for _ in self._samples]
        self._reduced: list[list[float]] = [[], []]
        self._taken: list[list[tuple[float, float]]] = [[], []]
        self._processor_shares: list[list[float]] = []

    def measure(self) -> None:
        """Measures once."""
        self._processor_shares.append([])
        for samples, phases in zip(self._samples, self._phases, strict=True):
            self._dist.barrier()
            begin, used = time.perf_counter(), time.thread_time()
            phases.append(_timed(self._torch, self._net, samples))
            self._processor_shares[-1].append((time.thread_time() - used) / (time.perf_counter() - begin))
        for size, reduced, taken in zip(self._sizes, self._reduced, self._taken, strict=True):
            reduced.append(self._reduced_s(size))
            taken.append((self._taken_by_all_reduce_s(size), self._taken_by_server_s(size)))

    def _reduced_s(self, size: int) -> float:
        tensors = self._tensors(size)
        begin = time.perf_counter()
        self._all_reduce(tensors)()
        return (time.perf_counter() - begin) / _UNDER_WAY

    def _taken_by_all_reduce_s(self, size: int) -> float:
        """The processor time of the threads that exchange, beside computing."""
        tensors = self._tensors(size)
        used = _others_s()
        wait = self._all_reduce(tensors)
        _timed(self._torch, self._net, self._samples[0])
        wait()
        return 0.0 if self._free else (_others_s() - used) / _UNDER_WAY

    def _taken_by_server_s(self, size: int) -> float:
        """The same, plus that of the hook, which runs in the thread that computes."""
        buckets = [_Bucket(tensor) for tensor in self._tensors(size)]
        parameters = [bucket.parameter.requires_grad_() for bucket in buckets]
        model = SimpleNamespace(process_group=self._dist.group.WORLD, parameters=lambda: parameters)
        served = Served(model, [GroupExchange("all", float(size), 0)])
        buckets[-1].last = True
        used, hook_s = _others_s(), 0.0
        for bucket in buckets:
            if bucket.last:
                _timed(self._torch, self._net, self._samples[0])
            begin = time.thread_time()
            served.exchange(bucket)
            hook_s += time.thread_time() - begin
        return (hook_s + (0.0 if self._free else _others_s() - used)) / _UNDER_WAY

    def _tensors(self, size: int) -> list[Any]:
        """The tensors of several exchanges, made when both processes are ready."""
        found = [self._torch.ones(size // 4) for _ in range(_UNDER_WAY)]
        self._dist.barrier()
        return found

    def _all_reduce(self, tensors: list[Any]) -> Callable[[], None]:
        """Starts all exchanges; returns a function that waits for them."""
        works = [self._dist.all_reduce(tensor, async_op=True) for tensor in tensors]

        def wait() -> None:
            for work in works:
                work.wait()

        return wait

    def speeds(self, begin: int = 0, end: int | None = None) -> MeasuredSpeeds:
        """The medians of these measurements (by default all so far), on which both processes agree."""
        some = slice(begin, end)
        phases = [[median(each[phase] for each in tries[some]) for tries in self._phases] for phase in range(3)]
        taken = [[median(each[way] for each in tries[some]) for way in range(2)] for tries in self._taken]
        processor_share = median(median(each) for each in self._processor_shares[some])
        everyone: list[Any] = [None, None]
        self._dist.all_gather_object(everyone, (phases, taken, processor_share))
        taken_s = [[max(each[1][size][way] for each in everyone) for way in range(2)] for size in range(2)]
        values = {
            "samples": self._samples,
            "forward_s": [each[0][0] for each in everyone],
            "backward_s": [each[0][1] for each in everyone],
            "update_s": [median(each[0][2]) for each in everyone],
            "reduced_bytes": self._sizes,
            "reduced_s": [median(tries[some]) for tries in self._reduced],
            "taken_s": taken_s,
            "processor_share": min(each[2] for each in everyone),
        }
        return decode(MeasuredSpeeds, _agreed(self._dist, lambda: values))


def _strategies(dist: Any, model: Model, speeds: MeasuredSpeeds) -> dict[str, SplitStrategy]:
    """The strategies to run. Both processes must train, so the plan must use both."""
    here = problem(model, speeds)

    def make() -> dict[str, Any]:
        four = uniform(here)
        best = search(here, evaluations=_EVALUATIONS)
        both = best if len(best.used) == 2 else four[SPEED_AR]
        return {name: asdict(each) for name, each in ((EVEN, four[EVEN_AR]), (BY_SPEED, four[SPEED_AR]), (PLAN, both))}

    return decode(dict[str, SplitStrategy], _agreed(dist, make))


class _Training:
    """The training with one split, through `training.apply`."""

    def __init__(self, torch: Any, dist: Any, model: Model, rank: int, strategy: SplitStrategy, steps: int) -> None:
        from torch.nn.parallel import DistributedDataParallel
        from torch.utils.data import DataLoader, TensorDataset

        self._dist = dist
        data = TensorDataset(torch.ones(steps * model.batch, _ROWS, _WIDTH))
        smallest_mb = min(model.gradient_bytes) / 2**20 / 2  # each group is a bucket of its own
        self._net = DistributedDataParallel(_net(torch, model, rank), bucket_cap_mb=smallest_mb)
        ranks = tuple(RankShare(f"rank {number}", "here", count) for number, count in enumerate(strategy.samples))
        ways = tuple(
            GroupExchange(group.name, group.gradient_bytes, server)
            for group, server in zip(model.groups, strategy.servers, strict=True)
        )
        loader = apply(PlanFile(PLAN_SCHEMA, ranks, ways), self._net, DataLoader(data, batch_size=1))
        self._batches = iter(loader)
        self._optimizer = torch.optim.SGD(self._net.parameters(), lr=1e-3)
        self.steps_s: list[float] = []

    def step(self) -> None:
        """One step, which both processes begin together."""
        (x,) = next(self._batches)
        self._optimizer.zero_grad(set_to_none=False)
        self._dist.barrier()
        begin = time.perf_counter()
        self._net(x).mean().backward()
        self._optimizer.step()
        self.steps_s.append(time.perf_counter() - begin)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
    # All is written. Threads of Gloo may still have to let tensors go, for which they need the interpreter: one that is
    # ending stops them, and that aborts the process ("terminate called without an active exception").
    sys.stdout.flush()
    os._exit(0)
