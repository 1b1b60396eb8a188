"""What a hooked collective costs the training thread: beside a small operator, and in a step of FSDP2.

    python -m scripts.bench.collective_cost [--backend gloo] [--rounds 30]

One process, of one rank over gloo, or of two over torch's fake backend, which does nothing and so shows the host's
share best. Hooks come and go in turn; a figure is the median over the rounds of what a round has with them and without.
The unit of the last column is adding one tensor of four numbers to another, timed in the same rounds. *Bare redispatch*
is a Python function in front of the operator that does nothing else, the least that a hook at the dispatcher can cost.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ddlprof.collect.hooks import collectives
from ddlprof.collect.hooks.table import hook_context
from ddlprof.collect.recorder import Recorder
from ddlprof.torch_private.collectives import KEY, below_backend_selection
from scripts.bench.calls import Calls
from scripts.bench.jobs import print_table

REPEATS = 100
LAYERS, WIDTH = 32, 8
STEP = f"FSDP2, {LAYERS} layers"
OPERATORS = ("allreduce_", "_allgather_base_", "_reduce_scatter_base_", "broadcast_")


def start_group(backend: str) -> None:
    """A job of this process alone, or one whose other rank is made up."""
    if backend == "gloo":
        dist.init_process_group("gloo", store=torch._C._distributed_c10d.HashStore(), rank=0, world_size=1)
    else:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)


def kinds() -> dict[str, Callable[[], Any]]:
    """Calls of one collective each."""
    from torch.distributed import _functional_collectives as functional

    part, whole = torch.ones(4), torch.ones(4 * dist.get_world_size())
    group = dist.group.WORLD
    assert group is not None
    return {
        "all_reduce": lambda: dist.all_reduce(part),
        "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(whole, part),
        "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(part, whole),
        "broadcast": lambda: dist.broadcast(part, 0),
        "all_reduce, asynchronous": lambda: dist.all_reduce(part, async_op=True).wait(),
        "functional all_reduce": lambda: functional.wait_tensor(functional.all_reduce(part, "sum", group)),
    }


def sharded_step(recorder: Recorder) -> Callable[[], None]:
    """A training step of FSDP2 with small layers, each with its own gathers and its own reduction."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    x = torch.ones(2, WIDTH)

    def step() -> None:
        model(x).sum().backward()
        if recorder.after_backward is not None:  # as the hook of backwards does
            recorder.after_backward()
        model.zero_grad()

    return step


def one_us(call: Callable[[], Any], repeats: int) -> float:
    """Microseconds of the processor in this thread for one call, the mean of several in a row."""
    begin = time.thread_time()
    for _ in range(repeats):
        call()
    return 1e6 * (time.thread_time() - begin) / repeats


class Hooks:
    """The hooks of collectives, alone, with a recorder that nobody reads."""

    def __init__(self) -> None:
        self.recorder = Recorder()
        self.context = hook_context(torch, self.recorder)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """With them inside the block."""
        uninstall = collectives.install(self.context)
        try:
            yield
        finally:
            uninstall()
            self.forget()

    def forget(self) -> None:
        """Lets go of the events so far, as the helper thread does after a step."""
        self.recorder.take_rest()
        self.recorder.chunks.clear()


@contextmanager
def bare_redispatch() -> Iterator[None]:
    """With functions that only pass on in front of the operators."""
    library, below = torch.library.Library("c10d", "IMPL"), below_backend_selection(torch)

    def passing_on(operator: Any) -> Callable[..., Any]:
        return lambda keyset, *args: operator.redispatch(keyset & below, *args)

    for name in OPERATORS:
        library.impl(name, passing_on(getattr(torch.ops.c10d, name).default), KEY, with_keyset=True)
    try:
        yield
    finally:
        library._destroy()


class Costs:
    """What each call costs more with the hooks than without, round by round."""

    def __init__(self, hooks: Hooks, calls: dict[str, Callable[[], Any]], repeats: int) -> None:
        self.hooks, self.calls, self.repeats = hooks, calls, repeats
        self.plain: dict[str, list[float]] = {name: [] for name in calls}
        self.ours: dict[str, list[float]] = {name: [] for name in calls}
        self.bare: dict[str, list[float]] = {name: [] for name in calls}

    def round(self) -> None:
        """Times everything once: without the hooks, with them, and with a redispatch."""
        begun = {name: one_us(call, self.repeats) for name, call in self.calls.items()}
        with self.hooks.installed():
            ours = {name: self._warm_us(call) for name, call in self.calls.items()}
        with bare_redispatch():
            bare = {name: self._warm_us(call) for name, call in self.calls.items()}
        for name, us in begun.items():
            self.plain[name].append(us)
            self.ours[name].append(ours[name] - us)
            self.bare[name].append(bare[name] - us)

    def _warm_us(self, call: Callable[[], Any]) -> float:
        self.hooks.forget()
        call()
        if self.hooks.recorder.before_update is not None:  # where hooks that have done their work go
            self.hooks.recorder.before_update()
        return one_us(call, self.repeats)

    def rows(self, unit_us: float, counts: dict[str, tuple[float, float]]) -> list[list[str]]:
        """One for each call, for the table."""
        found = []
        for name in self.calls:
            plain, ours, bare = (statistics.median(each[name]) for each in (self.plain, self.ours, self.bare))
            python, in_c = counts[name]
            cells = [f"{plain:.1f}", f"{ours:.2f}", f"{ours / unit_us:.1f}", f"{bare:.2f}", f"{bare / unit_us:.1f}"]
            found.append([name, *cells, f"{python:.1f}", f"{in_c:.1f}"])
        return found


def count(hooks: Hooks, call: Callable[[], Any], repeats: int = 20) -> tuple[float, float]:
    """Functions of ours in a call, and functions in C that they call."""
    found = Calls()
    with hooks.installed():
        call()
        if hooks.recorder.before_update is not None:
            hooks.recorder.before_update()
        with found.counting():
            for _ in range(repeats):
                call()
    return sum(found.python.values()) / repeats, sum(found.in_c.values()) / repeats


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=("fake", "gloo"), default="fake")
    parser.add_argument("--rounds", type=int, default=30)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    start_group(arguments.backend)
    hooks = Hooks()
    one, other = torch.ones(4), torch.ones(4)
    single = kinds()
    step = {STEP: sharded_step(hooks.recorder)} if dist.get_world_size() > 1 else {}
    costs, step_costs = Costs(hooks, single, REPEATS), Costs(hooks, step, 2)
    for call in (*single.values(), *step.values()):
        call()
    gc.collect()
    gc.freeze()  # a collection of all that torch has made is not what a collective costs
    units: list[float] = []
    for _ in range(arguments.rounds):
        units.append(one_us(lambda: one.add_(other), REPEATS))
        costs.round()
        step_costs.round()
    unit = statistics.median(units)
    counts = {name: count(hooks, call) for name, call in {**single, **step}.items()}
    print(f"\n{arguments.backend}, torch {torch.__version__}, load {os.getloadavg()[0]:.1f}; ", end="")
    print(f"a small operator: {unit:.2f} us\n")
    head = ["call", "plain us", "hook us", "operators", "bare redispatch us", "operators", "Python calls", "C calls"]
    print_table(head, costs.rows(unit, counts) + step_costs.rows(unit, counts))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
