"""Times LSTMs of given shapes on this machine: torch's, and the same with structured and with random dropout.

`main` runs in a process of its own for `ddlprof sparsity --try-structured`: it reads the shapes as JSON from stdin
and writes the times to stdout.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from ddlprof.extensions.sparsity.nn.lstm import StructuredDropoutLSTM

_BLOCKS = 5


@dataclass(frozen=True)
class Shape:
    """One LSTM to time. `dropout`: the dropped share of the inputs of all layers and of their hidden states."""

    input_size: int
    hidden_size: int
    num_layers: int
    batch: int
    length: int
    dropout: float


def times_of(shape: Shape, device: str) -> dict[str, float]:
    """The median seconds of one forward and backward pass of the three, by the fields of `LstmTiming`.

    Times them in turns, on the CPU by processor time, so that other work on the machine counts for less.
    """
    p = shape.dropout
    between = p if shape.num_layers > 1 else 0.0

    def make(kind: Any, **more: Any) -> nn.LSTM:
        made: nn.LSTM = kind(
            shape.input_size, shape.hidden_size, shape.num_layers, dropout=between, device=device, **more
        )
        return made

    ours = partial(make, StructuredDropoutLSTM, recurrent_dropout=p, input_dropout=p)
    modules = {"torch_s": make(nn.LSTM), "random_s": ours(structured=False), "structured_s": ours()}
    x = torch.randn(shape.length, shape.batch, shape.input_size, device=device, requires_grad=True)
    found: dict[str, list[float]] = {name: [] for name in modules}
    for block in range(_BLOCKS + 1):
        for name, module in modules.items():
            taken = _timed(lambda module=module: _once(module, x), device)  # type: ignore[misc]
            if block:  # the first one allocates
                found[name].append(taken)
    return {name: statistics.median(each) for name, each in found.items()}


def _once(module: Any, x: Any) -> None:
    y, _ = module(x)
    y.sum().backward()
    module.zero_grad(set_to_none=True)


def _timed(work: Callable[[], None], device: str) -> float:
    if device == "cpu":
        clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
        begin = clock()
        work()
        return clock() - begin
    torch.cuda.synchronize()
    begin = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - begin


def main() -> None:
    """Reads `{"device", "threads", "shapes"}`, writes a list of times."""
    asked = json.load(sys.stdin)
    torch.set_num_threads(asked["threads"])
    found = [times_of(Shape(**shape), asked["device"]) for shape in asked["shapes"]]
    sys.stdout.write(json.dumps(found))
