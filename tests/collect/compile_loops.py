"""Ways to use torch.compile, run one after the other in a process of their own; `test_compile.py` compares two of them.

`python compile_loops.py [DIRECTORY]`: prints what dynamo counted in each as JSON, profiled where there is a directory.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
from torch import nn
from torch._dynamo.utils import counters

STEPS = 6
Loop = Callable[[], None]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(4, 8), nn.ReLU())
        self.last = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> Any:
        return self.last(self.first(x))


def make() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    net = Net()
    return net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)


def train(net: Any, optimizer: Any, steps: int = STEPS) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        net(torch.ones(3, 4)).sum().backward()
        optimizer.step()


def model(**options: Any) -> Loop:
    def loop() -> None:
        net, optimizer = make()
        train(torch.compile(net, backend="aot_eager", **options), optimizer)

    return loop


def model_in_place() -> None:
    net, optimizer = make()
    net.compile(backend="aot_eager", fullgraph=True)
    train(net, optimizer)


def after_the_first_steps() -> None:
    net, optimizer = make()
    train(net, optimizer)
    train(torch.compile(net, backend="aot_eager", fullgraph=True), optimizer)


def in_place_after_the_first_steps() -> None:
    net, optimizer = make()
    train(net, optimizer)
    net.compile(backend="aot_eager", fullgraph=True)
    train(net, optimizer)


def forward_and_loss(after: int) -> Loop:
    def loop() -> None:
        net, optimizer = make()
        train(net, optimizer, after)

        @torch.compile(backend="aot_eager", fullgraph=True)
        def loss(x: torch.Tensor) -> Any:
            return net(x).sum()

        for _ in range(STEPS):
            optimizer.zero_grad()
            loss(torch.ones(3, 4)).backward()
            optimizer.step()

    return loop


def whole_step() -> None:
    net, optimizer = make()

    @torch.compile(backend="eager")
    def step(x: torch.Tensor) -> None:
        optimizer.zero_grad()
        net(x).sum().backward()
        optimizer.step()

    for _ in range(STEPS):
        step(torch.ones(3, 4))


def optimizer_step() -> None:
    net, optimizer = make()
    compiled: Any = torch.compile(optimizer.step, backend="eager")
    optimizer.step = compiled  # type: ignore[method-assign]
    train(net, optimizer)


def graph_break_of_the_users() -> None:
    class Breaking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, _ = make()

        def forward(self, x: torch.Tensor) -> Any:
            y = self.net(x)
            torch._dynamo.graph_break()
            return y * 2

    net = Breaking()
    fast, optimizer = torch.compile(net, backend="aot_eager"), torch.optim.SGD(net.parameters(), lr=0.1)
    train(fast, optimizer, STEPS - 2)
    time.sleep(0.6)  # the search for outermost modules ends meanwhile
    train(fast, optimizer, 2)


def evaluation_too() -> None:
    net, optimizer = make()
    compiled = torch.compile(net, backend="aot_eager", fullgraph=True)
    train(compiled, optimizer, 3)
    with torch.no_grad():
        compiled(torch.ones(3, 4))
    train(compiled, optimizer, 3)


LOOPS: dict[str, Loop] = {
    "torch.compile(model)": model(),
    "torch.compile(model, fullgraph=True)": model(fullgraph=True),
    "torch.compile(model, dynamic=True)": model(dynamic=True, fullgraph=True),
    "model.compile()": model_in_place,
    "torch.compile(model) after the first steps": after_the_first_steps,
    "model.compile() after the first steps": in_place_after_the_first_steps,
    "forward and loss": forward_and_loss(after=0),
    "forward and loss after the first steps": forward_and_loss(after=STEPS),
    "whole step": whole_step,
    "optimizer.step": optimizer_step,
    "graph break of the user's": graph_break_of_the_users,
    "evaluation too": evaluation_too,
}


def counted(loop: Loop) -> dict[str, Any]:
    torch._dynamo.reset()
    counters.clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loop()
    return {
        **counters["stats"],
        "graph_breaks": sorted((reason.split("\n")[0], times) for reason, times in counters["graph_break"].items()),
        "frames": counters["frames"]["total"],
        "warnings": [str(warning.message) for warning in caught],
    }


def profiled(loop: Loop, directory: Path) -> dict[str, Any]:
    from ddlprof.collect.session import Session
    from ddlprof.model import codec
    from ddlprof.model.options import Options
    from ddlprof.model.records import Flag

    session = Session(Options(out=str(directory), quiet=True), "compile", [])
    session.begin()
    result = counted(loop)
    session.finish("ok", 0)
    lines = (directory / "attempt-0" / "rank-0.jsonl").read_text().splitlines()[1:]
    records = [codec.decode(line) for line in lines]
    rows = [record for tag, record in records if tag == "s"]
    result["microbatches"] = [row.microbatches for row in rows]
    result["compiling"] = [row.step for row in rows if Flag.COMPILE in Flag(row.flags)]
    result["notes"] = [record for tag, record in records if tag == "n"]
    return result


def main() -> None:
    results = {}
    for number, (name, loop) in enumerate(LOOPS.items()):
        results[name] = profiled(loop, Path(sys.argv[1]) / str(number)) if sys.argv[1:] else counted(loop)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
