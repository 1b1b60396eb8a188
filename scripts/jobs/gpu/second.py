"""Trains on the second GPU by its name alone, and says who holds a context on the first."""

from __future__ import annotations

import common
import torch
from torch import nn

WIDTH = 64


def contexts_on_first() -> int:
    """Processes that compute there. Those of other containers count: compare runs."""
    if common.REHEARSAL:
        from scripts.lab.simulated_cuda.classes import StreamBase

        return int(0 in StreamBase.machine.contexts)
    import pynvml

    pynvml.nvmlInit()
    return len(pynvml.nvmlDeviceGetComputeRunningProcesses(pynvml.nvmlDeviceGetHandleByIndex(0)))


def main() -> None:
    """Trains, and writes."""
    args = common.parser(__doc__).parse_args()
    device = torch.device("cuda:1")
    model = nn.Linear(WIDTH, WIDTH).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.ones(WIDTH, WIDTH).to(device)
    for _ in range(args.steps):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
    torch.cuda.synchronize(device)
    common.write(args.truth, {"contexts": contexts_on_first()})


if __name__ == "__main__":
    main()
