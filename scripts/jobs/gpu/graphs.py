"""Compiles or captures what it trains, in one of several ways; what came out must be the same with any profiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import common
import torch
from torch import nn

WIDTH = 64
ROWS = 32


def model_of(device: str) -> nn.Module:
    """Three layers."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1)
    ).to(device)


class Moving(nn.Module):
    """Copies to the device inside what is compiled, by each of the methods that a profiler may want to see."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("scale", torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> Any:
        scale = self.get_buffer("scale")
        scale.copy_(x.detach().mean(0).to(scale.dtype))
        return self.model(x.to(scale.device) * scale.to(x.dtype))


def train(model: Callable[..., Any], parameters: Any, steps: int, x: torch.Tensor) -> list[float]:
    """The losses; they are read at the end."""
    optimizer = torch.optim.SGD(parameters, lr=1e-3)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().clone())
    return [float(loss) for loss in losses]


def compiled(steps: int, x: torch.Tensor, **options: Any) -> list[float]:
    """Compiles by inductor; by dynamo alone where there is no device to compile for."""
    if common.REHEARSAL:
        options = {"backend": "eager", **{k: v for k, v in options.items() if k in ("fullgraph", "dynamic")}}
    model = Moving(model_of(common.DEVICE)).to(common.DEVICE)
    return train(torch.compile(model, **options), model.parameters(), steps, x)


def graphed_callables(steps: int, x: torch.Tensor) -> list[float]:
    """torch's own wrapper: forward and backward are replayed, the update is not."""
    model = model_of(common.DEVICE)
    graphed = torch.cuda.make_graphed_callables(model, (torch.randn_like(x),))
    return train(graphed, model.parameters(), steps, x)


def whole_step(steps: int, x: torch.Tensor, forbids: str = "global") -> list[float]:
    """Captures as torch's notes on CUDA say: warm-up on a side stream, then one graph of all.

    `forbids`: what other threads may not do in the meantime, as torch names it (`capture_error_mode`).
    """
    model = model_of(common.DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()  # type: ignore[no-any-return]

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        losses = [step().clone() for _ in range(3)]
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode=forbids):
        static = step()
    for _ in range(steps):
        graph.replay()
        losses.append(static.clone())
    return [float(loss) for loss in losses]


def captures(steps: int, x: torch.Tensor) -> list[float]:
    """A graph of inference in each of the steps, while training goes on."""
    model = model_of(common.DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    losses, graphs = [], []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().clone())
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph), torch.no_grad():
            model(x)
        graph.replay()
        graphs.append(graph)
    return [float(loss) for loss in losses]


KINDS: dict[str, Callable[[int, torch.Tensor], list[float]]] = {
    "fullgraph": lambda steps, x: compiled(steps, x, fullgraph=True),
    "default": compiled,
    "dynamic": lambda steps, x: compiled(steps, x, dynamic=True),
    "max-autotune": lambda steps, x: compiled(steps, x, mode="max-autotune"),
    "max-autotune-no-cudagraphs": lambda steps, x: compiled(steps, x, mode="max-autotune-no-cudagraphs"),
    "reduce-overhead": lambda steps, x: compiled(steps, x, mode="reduce-overhead"),
    "graphed-callables": graphed_callables,
    "whole-step": whole_step,
    "whole-step-thread-local": lambda steps, x: whole_step(steps, x, "thread_local"),
    "whole-step-relaxed": lambda steps, x: whole_step(steps, x, "relaxed"),
    "captures": captures,
}


def without_relaxed_mode() -> None:
    """Takes from ddlprof, where it profiles this, the mode in which its queries end no captures: what would they do?"""
    from contextlib import nullcontext

    from ddlprof.collect.accelerator.cuda import CaptureMode

    mode: Any = CaptureMode
    mode.relaxed = lambda self: nullcontext()


def main() -> None:
    """Trains, and writes the losses and what dynamo counted."""
    parser = common.parser(__doc__)
    parser.add_argument("--kind", choices=KINDS, required=True)
    parser.add_argument("--without-relaxed-mode", type=int, default=0)
    args = parser.parse_args()
    if args.without_relaxed_mode:
        without_relaxed_mode()
    torch.manual_seed(0)
    x = torch.randn(ROWS, WIDTH).to(common.DEVICE)
    losses = KINDS[args.kind](args.steps, x)
    import torch._dynamo.utils as dynamo

    counted = {name: dict(dynamo.counters[name]) for name in ("stats", "graph_break", "recompiles")}
    counted["stats"] = {k: v for k, v in counted["stats"].items() if k in ("unique_graphs", "calls_captured")}
    common.write(args.truth, {"losses": losses, "dynamo": counted})


if __name__ == "__main__":
    main()
