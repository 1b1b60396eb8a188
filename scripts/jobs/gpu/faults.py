"""Ends badly in one of several ways, after some good steps: the user must see their own error, and soon."""

from __future__ import annotations

import common
import torch
from torch import nn

WIDTH = 64
OWN = "the user's own error"
KERNEL = 'extern "C" __global__ void broken(float* x) { *(float*)(((long long)x & 0) + 8) = 1; }'


def illegal_access() -> None:
    """A kernel writes where no memory is; where none can be compiled, an index is out of bounds."""
    if common.REHEARSAL:
        from scripts.lab.simulated_cuda.classes import StreamBase
        from scripts.lab.simulated_cuda.device import ILLEGAL_ACCESS

        StreamBase.machine.error = ILLEGAL_ACCESS
    elif hasattr(torch.cuda, "_compile_kernel"):
        broken = torch.cuda._compile_kernel(KERNEL, "broken")
        broken(grid=(1, 1, 1), block=(1, 1, 1), args=[torch.zeros(1, device="cuda")])
    else:
        torch.zeros(1, device="cuda")[torch.tensor([10**6], device="cuda")]
    torch.cuda.synchronize()


def abandoned_capture() -> None:
    """An exception leaves a capture by torch's own context."""
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        torch.ones(2, device="cuda")
        raise RuntimeError(OWN)


def open_capture() -> None:
    """Nobody ends the capture."""
    torch.cuda.set_stream(torch.cuda.Stream())
    graph = torch.cuda.CUDAGraph()  # alive until the process ends
    graph.capture_begin()
    raise RuntimeError(OWN)


KINDS = {"illegal-access": illegal_access, "abandoned-capture": abandoned_capture, "open-capture": open_capture}


def main() -> None:
    """Trains, then breaks."""
    parser = common.parser(__doc__)
    parser.add_argument("--kind", choices=KINDS, required=True)
    args = parser.parse_args()
    model = nn.Linear(WIDTH, WIDTH).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.ones(WIDTH, WIDTH).to("cuda")
    for _ in range(args.steps):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
    torch.cuda.synchronize()
    KINDS[args.kind]()


if __name__ == "__main__":
    main()
