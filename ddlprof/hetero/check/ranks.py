"""One of the two processes of a check: `python -m ddlprof.hetero.check.ranks RANK FOLDER`.

Both measure how fast they compute and reduce, and plan. Then they measure again and train one step with each split, in
many rounds, so that whatever else the machine does slows everything alike; rank 0 writes what was measured.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any

from ddlprof.hetero.check.local import BY_SPEED, EVEN, PLAN, Model, Speeds, problem, speeds_of
from ddlprof.hetero.job import Strategy
from ddlprof.hetero.plan_file import PLAN_SCHEMA, GroupWay, PlanFile, RankShare
from ddlprof.hetero.search import search
from ddlprof.hetero.training import apply
from ddlprof.hetero.uniform import EVEN_AR, SPEED_AR, uniform

SPEC, RESULT, STORE = "spec.json", "result.json", "store"
_WIDTH = 256
_SAMPLES_OF_ONE = 32
"""The samples that one product is timed with."""
_FIRST = 10
"""Measurements before the plan is made."""
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
    fields = _agreed(dist, lambda: asdict(_sized(torch, spec)))
    model = Model(tuple(fields["gradient_bytes"]), tuple(fields["repeats"]), fields["slow"], fields["batch"])
    gauge = _Gauge(torch, dist, model, rank)
    for _ in range(_FIRST):
        gauge.measure()
    strategies = _strategies(dist, model, gauge.speeds())
    trainings = {
        name: _Training(torch, dist, model, rank, each, spec["rounds"] + _WARM_UP) for name, each in strategies.items()
    }
    for _ in range(spec["rounds"] + _WARM_UP):
        gauge.measure()
        for training in trainings.values():
            training.step()
    speeds = gauge.speeds()
    found = {
        "model": asdict(model),
        "strategies": {name: asdict(each) for name, each in strategies.items()},
        "speeds": asdict(speeds),
        "steps_s": {name: training.steps_s[_WARM_UP:] for name, training in trainings.items()},
    }
    if rank == 0:
        (folder / RESULT).write_text(json.dumps(found), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


def _agreed(dist: Any, make: Callable[[], Any]) -> Any:
    """What rank 0 makes, on all ranks."""
    values = [make() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(values)
    return values[0]


def _sized(torch: Any, spec: dict[str, Any]) -> Model:
    """The net whose fast half of an even split computes for about `busy_s` seconds."""
    net = _net(torch, Model((4,), (8,), 1, _SAMPLES_OF_ONE), 0)
    seconds = median(sum(_timed(torch, net, _SAMPLES_OF_ONE)[:2]) for _ in range(8)) / 8
    whole = max(spec["busy_s"] / seconds * _SAMPLES_OF_ONE / (spec["batch"] / 2), len(spec["shares"]))
    repeats = tuple(max(round(share * whole), 1 if share else 0) for share in spec["shares"])
    return Model(tuple(spec["gradient_bytes"]), repeats, spec["slow"], spec["batch"])


def _net(torch: Any, model: Model, rank: int) -> Any:
    """A module for each group: products that need no gradient of their own, and a parameter of the group's size."""

    class Group(torch.nn.Module):  # type: ignore[misc]
        def __init__(self, size: int, repeats: int) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(max(size // 4, 1)))
            self.register_buffer("fixed", torch.eye(_WIDTH))  # nothing shrinks: tiny numbers are slow
            self.repeats = repeats * (model.slow if rank else 1)

        def forward(self, x: Any) -> Any:
            x = x + self.weight.mean()
            for _ in range(self.repeats):
                x = torch.relu(x @ self.fixed)
            return x

    torch.manual_seed(0)
    groups = [Group(size, repeats) for size, repeats in zip(model.gradient_bytes, model.repeats, strict=True)]
    return torch.nn.Sequential(*groups)


def _timed(torch: Any, net: Any, samples: int) -> tuple[float, float, float]:
    """Seconds of forward, backward and update, without any communication."""
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    optimizer.zero_grad(set_to_none=False)
    x = torch.ones(samples, _WIDTH, requires_grad=True)
    begin = time.perf_counter()
    loss = net(x).mean()
    forward = time.perf_counter()
    loss.backward()
    backward = time.perf_counter()
    optimizer.step()
    return forward - begin, backward - forward, time.perf_counter() - backward


class _Gauge:
    """How fast both compute at the same time, as in training, and how fast the link is."""

    def __init__(self, torch: Any, dist: Any, model: Model, rank: int) -> None:
        self._torch, self._dist = torch, dist
        self._net = _net(torch, model, rank)
        self._samples = max(model.batch // 8, 1), max(3 * model.batch // 4, 2)
        self._sizes = 1 << 16, max(*model.gradient_bytes, 1 << 20)
        self._phases: list[list[tuple[float, float, float]]] = [[], []]
        self._reduced: list[list[float]] = [[], []]

    def measure(self) -> None:
        """Once."""
        for samples, phases in zip(self._samples, self._phases, strict=True):
            self._dist.barrier()
            phases.append(_timed(self._torch, self._net, samples))
        for size, reduced in zip(self._sizes, self._reduced, strict=True):
            tensor = self._torch.ones(size // 4)
            self._dist.barrier()
            begin = time.perf_counter()
            self._dist.all_reduce(tensor)
            reduced.append(time.perf_counter() - begin)

    def speeds(self) -> Speeds:
        """The medians of all that was measured so far, agreed on by both."""
        phases = [[median(each[phase] for each in tries) for tries in self._phases] for phase in range(3)]
        everyone: list[Any] = [None, None]
        self._dist.all_gather_object(everyone, phases)
        values = {
            "samples": self._samples,
            "forward_s": [each[0] for each in everyone],
            "backward_s": [each[1] for each in everyone],
            "update_s": [median(each[2]) for each in everyone],
            "reduced_bytes": self._sizes,
            "reduced_s": [median(each) for each in self._reduced],
        }
        return speeds_of(_agreed(self._dist, lambda: values))


def _strategies(dist: Any, model: Model, speeds: Speeds) -> dict[str, Strategy]:
    """Those that are run; both processes have to train, so that the plan may not leave one out."""
    here = problem(model, speeds)

    def make() -> dict[str, Any]:
        four = uniform(here)
        best = search(here, evaluations=_EVALUATIONS)
        both = best if len(best.used) == 2 else four[SPEED_AR]
        return {name: asdict(each) for name, each in ((EVEN, four[EVEN_AR]), (BY_SPEED, four[SPEED_AR]), (PLAN, both))}

    agreed = _agreed(dist, make)
    return {
        name: Strategy(tuple(each["samples"]), tuple(each["servers"]), each["by_rank"]) for name, each in agreed.items()
    }


class _Training:
    """One split, by the helper that applies plans."""

    def __init__(self, torch: Any, dist: Any, model: Model, rank: int, strategy: Strategy, steps: int) -> None:
        from torch.nn.parallel import DistributedDataParallel
        from torch.utils.data import DataLoader, TensorDataset

        self._dist = dist
        data = TensorDataset(torch.ones(steps * model.batch, _WIDTH))
        smallest_mb = min(model.gradient_bytes) / 2**20 / 2  # each group is a bucket of its own
        self._net = DistributedDataParallel(_net(torch, model, rank), bucket_cap_mb=smallest_mb)
        ranks = tuple(RankShare(f"rank {number}", "here", count) for number, count in enumerate(strategy.samples))
        ways = tuple(
            GroupWay(group.name, group.gradient_bytes, server)
            for group, server in zip(model.groups, strategy.servers, strict=True)
        )
        loader = apply(PlanFile(PLAN_SCHEMA, ranks, ways), self._net, DataLoader(data, batch_size=1))
        self._batches = iter(loader)
        self._optimizer = torch.optim.SGD(self._net.parameters(), lr=1e-3)
        self.steps_s: list[float] = []

    def step(self) -> None:
        """One step, both processes beginning together."""
        (x,) = next(self._batches)
        self._optimizer.zero_grad(set_to_none=False)
        self._dist.barrier()
        begin = time.perf_counter()
        self._net(x).mean().backward()
        self._optimizer.step()
        self.steps_s.append(time.perf_counter() - begin)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
