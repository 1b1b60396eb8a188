# VITA-Group/Deep_GCN_Benchmarking#2 snap-stanford/ogb#157: each forward normalises the same graph; cure: once (cached)
from __future__ import annotations

import torch
from own_clock import FAULT, OwnClock
from torch import nn

NODES, EDGES = 10_000, 200_000


def normalised(edges: torch.Tensor) -> torch.Tensor:
    loops = torch.arange(NODES).expand(2, -1)
    both = torch.cat([edges, loops], 1)
    degree = torch.zeros(NODES).index_add_(0, both[0], torch.ones(both.shape[1])).rsqrt()
    return torch.sparse_coo_tensor(both, degree[both[0]] * degree[both[1]], (NODES, NODES)).coalesce()


class Layer(nn.Module):
    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, out)
        self.cached: torch.Tensor | None = None

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        if FAULT or self.cached is None:
            self.cached = normalised(edges)
        out: torch.Tensor = torch.sparse.mm(self.cached, self.linear(x))
        return out


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = Layer(32, 16), Layer(16, 10)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(self.first(x, edges).relu(), edges)
        return out


if __name__ == "__main__":
    torch.set_num_threads(1)
    model = Network()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    x, y, edges = torch.randn(NODES, 32), torch.randint(0, 10, (NODES,)), torch.randint(0, NODES, (2, EDGES))
    clock = OwnClock()
    for _ in range(50):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x, edges), y).backward()
        optimizer.step()
        clock.step()
    clock.done()
