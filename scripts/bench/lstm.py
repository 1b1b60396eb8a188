"""One forward and backward pass of torch's LSTM, and of ours with structured and with random dropout of states.

    OMP_NUM_THREADS=1 python -m scripts.bench.lstm INPUTS HIDDEN LAYERS BATCH LENGTH DROPPED

DROPPED is the share of the inputs of all layers and of their hidden states that ours drop, such as 0.5; `nn.LSTM` has
its own dropout between layers. Prints the medians of several passes in turns, by processor time where there is one
thread, so that other work on the machine counts for less.
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import Any

import torch
from torch import nn

from ddlprof.extensions.sparsity.nn import StructuredDropoutLSTM

ROUNDS = 5


def main() -> None:
    inputs, hidden, layers, batch, length = map(int, sys.argv[1:6])
    share = float(sys.argv[6])
    between = share if layers > 1 else 0.0
    ours: Any = {"dropout": between, "recurrent_dropout": share, "input_dropout": share}
    modules = {
        "torch.nn.LSTM": nn.LSTM(inputs, hidden, layers, dropout=between),
        "structured": StructuredDropoutLSTM(inputs, hidden, layers, **ours),
        "random": StructuredDropoutLSTM(inputs, hidden, layers, structured=False, **ours),
    }
    x = torch.randn(length, batch, inputs, requires_grad=True)
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    seconds: dict[str, list[float]] = {name: [] for name in modules}
    for number in range(ROUNDS + 1):
        for name, module in modules.items():
            begin = clock()
            y, _ = module(x)
            y.sum().backward()
            module.zero_grad(set_to_none=True)
            if number:  # the first one allocates
                seconds[name].append(clock() - begin)
    for name, each in seconds.items():
        print(f"{name:15} {1000 * statistics.median(each):8.1f} ms")


if __name__ == "__main__":
    main()
