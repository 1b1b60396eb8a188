# tkipf/gcn#105 stellargraph/stellargraph#1528: neighbours are summed by a dense matrix of zeros; cure: a sparse one
from __future__ import annotations

import torch
from own_clock import FAULT, OwnClock
from torch import nn

NODES, STEPS = 2_000, 60


def adjacency() -> torch.Tensor:
    """Of a graph in which a node has four neighbours, normalised as GCN has it."""
    edges, found = torch.randint(0, NODES, (2, 2 * NODES)), torch.eye(NODES)
    found[edges[0], edges[1]] = found[edges[1], edges[0]] = 1.0
    root = found.sum(1).pow(-0.5)
    found = root[:, None] * found * root
    return found if FAULT else found.to_sparse_csr()


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(128, 64), nn.Linear(64, 7)

    def forward(self, x: torch.Tensor, graph: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(graph @ self.first(x))
        return torch.mm(graph, self.second(hidden))


if __name__ == "__main__":
    torch.set_num_threads(1)
    graph, x, labels = adjacency(), torch.randn(NODES, 128), torch.randint(0, 7, (NODES,))
    model = Network()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    clock = OwnClock()
    for _ in range(STEPS):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x, graph)[:140], labels[:140]).backward()
        optimizer.step()
        clock.step()
    clock.done()
