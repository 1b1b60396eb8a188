# microsoft/vscode-python#106: a debugger's trace function stays on while it trains; cure: train without it
from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import torch
from own_clock import FAULT, OwnClock
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def watch(frame: FrameType, event: str, argument: Any) -> Any:
    """Looks for a breakpoint at each line, as debuggers did before Python 3.12."""
    return None if (frame.f_code.co_filename, frame.f_lineno) in {("train.py", 1)} else watch


def main() -> None:
    model = nn.Sequential(*[layer for _ in range(40) for layer in (nn.Linear(32, 32), nn.ReLU())], nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    data = TensorDataset(torch.randn(8000, 32), torch.randint(0, 10, (8000,)))
    clock = OwnClock()
    clock.train(model, optimizer, DataLoader(data, batch_size=32))
    clock.done()


if __name__ == "__main__":
    torch.set_num_threads(1)
    if FAULT:
        sys.settrace(watch)
    main()
