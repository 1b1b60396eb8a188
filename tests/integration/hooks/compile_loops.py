"""Ways to use torch.compile, run one after the other in a process of their own; `test_compile.py` compares two of them.

`python compile_loops.py [DIRECTORY]`: prints what dynamo counted in each as JSON, profiled where there is a directory.
"""

from __future__ import annotations

import contextlib
import functools
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
from torch.utils.data import DataLoader

STEPS = 6
BATCH = 3
EVALUATED = 3
"""The step in which there is an evaluation, where there is one."""
Loop = Callable[[], None]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(4, 8), nn.ReLU())
        self.last = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> Any:
        return self.last(self.first(x))


SGD = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)
MakeOptimizer = Callable[..., torch.optim.Optimizer]


def make(kind: MakeOptimizer = SGD) -> tuple[Any, torch.optim.Optimizer]:
    torch.manual_seed(0)
    net = Net()
    optimizer = kind(net.parameters())
    made.append(net)
    return net, optimizer


made: list[nn.Module] = []
"""The last one is what the loop has trained."""


def train(net: Any, optimizer: Any, steps: int = STEPS) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        net(torch.ones(BATCH, 4)).sum().backward()
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
            loss(torch.ones(BATCH, 4)).backward()
            optimizer.step()

    return loop


def whole_step(kind: MakeOptimizer = SGD, backend: str = "aot_eager", traced_backward: bool = False) -> Loop:
    def loop() -> None:
        net, optimizer = make(kind)

        @torch.compile(backend=backend)
        def step(x: torch.Tensor) -> None:
            optimizer.zero_grad()
            net(x).sum().backward()
            optimizer.step()

        with torch._dynamo.config.patch({"trace_autograd_ops": True} if traced_backward else {}):
            for _ in range(STEPS):
                step(torch.ones(BATCH, 4))

    return loop


def optimizer_step(kind: MakeOptimizer = SGD) -> Loop:
    def loop() -> None:
        net, optimizer = make(kind)
        compiled: Any = torch.compile(optimizer.step, backend="aot_eager")
        optimizer.step = compiled  # type: ignore[method-assign]
        train(net, optimizer)

    return loop


def update(kind: MakeOptimizer = SGD) -> Loop:
    def loop() -> None:
        net, optimizer = make(kind)

        @torch.compile(backend="aot_eager")
        def update_and_reset() -> None:
            optimizer.step()
            optimizer.zero_grad()

        for _ in range(STEPS):
            net(torch.ones(BATCH, 4)).sum().backward()
            update_and_reset()

    return loop


def uncompiled_step_inside() -> None:
    net, optimizer = make()

    update: Any = torch.compiler.disable(optimizer.step)

    @torch.compile(backend="aot_eager")
    def step(x: torch.Tensor) -> None:
        net(x).sum().backward()
        update()
        optimizer.zero_grad()

    for _ in range(STEPS):
        step(torch.ones(BATCH, 4))


def scaled() -> None:
    net, optimizer = make()
    compiled: Any = torch.compile(optimizer.step, backend="aot_eager")
    optimizer.step = compiled  # type: ignore[method-assign]
    scaler = torch.amp.GradScaler("cpu")
    for _ in range(STEPS):
        optimizer.zero_grad()
        scaler.scale(net(torch.ones(BATCH, 4)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()


def all_but_the_model() -> None:
    """Compiled functions before and after each of the eager calls; those without gradients are no forwards."""
    net, optimizer = make()
    average = [p.detach().clone() for p in net.parameters()]

    @torch.compile(backend="aot_eager", fullgraph=True)
    def augment(x: torch.Tensor) -> torch.Tensor:
        return (x - 0.5) * 2

    @torch.compile(backend="aot_eager", fullgraph=True)
    def loss(y: torch.Tensor) -> Any:
        return inner(y).sum()

    @torch.compile(backend="aot_eager", fullgraph=True)
    def inner(y: torch.Tensor) -> torch.Tensor:
        return y * y

    @torch.compile(backend="aot_eager", fullgraph=True)
    @torch.no_grad()
    def follow() -> None:
        for old, new in zip(average, net.parameters(), strict=True):
            old.lerp_(new, 0.1)

    @torch.compile(backend="aot_eager", fullgraph=True)
    @torch.no_grad()
    def clip() -> None:
        for p in net.parameters():
            p.clamp_(-1, 1)

    for x in batches():
        optimizer.zero_grad()
        loss(net(augment(x))).backward()
        optimizer.step()
        follow()
        clip()


def evaluation_in_a_function() -> None:
    net, optimizer = make()

    @torch.compile(backend="aot_eager", fullgraph=True)
    def loss(x: torch.Tensor) -> Any:
        return net(x).sum()

    for step, x in enumerate(batches(), 1):
        optimizer.zero_grad()
        loss(x).backward()
        optimizer.step()
        if step == EVALUATED:
            for other in batches():
                with torch.no_grad():
                    loss(other)


def loop_over_batches() -> None:
    """Dynamo leaves the loop to Python and compiles what it calls: optimizers, without their hooks."""
    net, optimizer = make()

    @torch.compile(backend="aot_eager")
    def epoch(loader: Any) -> None:
        for x in loader:
            optimizer.zero_grad()
            net(x).sum().backward()
            optimizer.step()

    epoch(batches())


def blocks() -> None:
    """Regional compilation: the blocks inside an eager model."""
    net, optimizer = make()
    net.first = torch.compile(net.first, backend="aot_eager")
    net.last.compile(backend="aot_eager")
    train(net, optimizer)


def that_raises() -> None:
    net, optimizer = make()

    @torch.compile(backend="aot_eager")
    def loss(x: torch.Tensor, wrong: bool = False) -> Any:
        if wrong:
            raise ValueError
        return net(x).sum()

    @torch.compile(backend="aot_eager", fullgraph=True)
    def nothing() -> None:
        return None

    for _ in range(STEPS):
        optimizer.zero_grad()
        with contextlib.suppress(ValueError):
            loss(torch.ones(BATCH, 4), wrong=True)
        with contextlib.suppress(RuntimeError):  # dynamo finds nothing to compile
            nothing()
        loss(torch.ones(BATCH, 4)).backward()
        optimizer.step()


def batches() -> Any:
    return DataLoader(torch.ones(STEPS * BATCH, 4), batch_size=BATCH)  # type: ignore[arg-type]


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
        compiled(torch.ones(BATCH, 4))
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
    "whole step": whole_step(),
    "whole step, eager backend": whole_step(backend="eager"),
    "whole step, plain SGD": whole_step(functools.partial(torch.optim.SGD, lr=0.1)),
    "whole step, fused AdamW": whole_step(functools.partial(torch.optim.AdamW, fused=True)),
    "whole step, foreach Adam": whole_step(functools.partial(torch.optim.Adam, foreach=True)),
    "optimizer.step": optimizer_step(),
    "optimizer.step, plain SGD": optimizer_step(functools.partial(torch.optim.SGD, lr=0.1)),
    "optimizer.step, fused AdamW": optimizer_step(functools.partial(torch.optim.AdamW, fused=True)),
    "update": update(),
    "update, Adam": update(torch.optim.Adam),
    "step that is not compiled, inside": uncompiled_step_inside,
    "optimizer.step under a gradient scaler": scaled,
    "all but the model": all_but_the_model,
    "evaluation in a function": evaluation_in_a_function,
    "loop over batches": loop_over_batches,
    "blocks": blocks,
    "call that raises": that_raises,
    "graph break of the user's": graph_break_of_the_users,
    "evaluation too": evaluation_too,
}


if hasattr(torch._dynamo.config, "trace_autograd_ops"):
    LOOPS["whole step with its backward"] = whole_step(traced_backward=True)


def counted(loop: Loop) -> dict[str, Any]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loop()
    return {
        **counters["stats"],
        "graph_breaks": sorted((_reason(text), times) for text, times in counters["graph_break"].items()),
        "frames": counters["frames"]["total"],
        "parameters": [p.tolist() for p in made[-1].parameters()],
        "warnings": [str(warning.message) for warning in caught],
    }


def _reason(text: str) -> str:
    """The first line. Dynamo refuses a function as one to inline where it calls it itself, else as one to call."""
    return text.split("\n")[0].replace("to inline function marked", "to call function marked")


def profiled(loop: Loop, directory: Path) -> dict[str, Any]:
    from ddlprof.collect.session import Session
    from ddlprof.model.options import Options
    from ddlprof.model.records import Flag
    from tests.records import records_in

    session = Session(Options(out=str(directory), quiet=True), "compile", [])
    session.begin()
    result = counted(loop)
    session.finish("ok", 0)
    records = records_in(directory / "attempt-0" / "rank-0.jsonl")
    rows = [record for tag, record in records if tag == "s"]
    result["microbatches"] = [row.microbatches for row in rows]
    result["samples"] = [row.samples for row in rows]
    result["evaluation"] = [row.step for row in rows if Flag.EVALUATION in Flag(row.flags)]
    result["skipped"] = [row.step for row in rows if Flag.SKIPPED in Flag(row.flags)]
    result["compiling"] = [row.step for row in rows if Flag.COMPILE in Flag(row.flags)]
    result["notes"] = [record for tag, record in records if tag == "n"]
    return result


def main() -> None:
    torch.version.cuda = "12.6"  # which has all hooks of other builds, and more
    torch.accelerator.current_accelerator = lambda check_available=False: torch.device("cuda")
    results = {}
    for number, (name, loop) in enumerate(LOOPS.items()):
        torch._dynamo.reset()
        counters.clear()
        results[name] = profiled(loop, Path(sys.argv[1]) / str(number)) if sys.argv[1:] else counted(loop)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
