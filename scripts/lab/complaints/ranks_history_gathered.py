# Lightning-AI/torchmetrics#217 huggingface/accelerate#226: all scores since the epoch's start are gathered in each step
from __future__ import annotations

import torch
import torch.distributed as dist
from own_clock import FAULT, OwnClock
from torch import nn

CLASSES, BATCH, STEPS = 50, 128, 120


class Ranking:
    """Keeps all scores, as a curve needs them all."""

    def __init__(self) -> None:
        self.scores: list[torch.Tensor] = []
        self.labels: list[torch.Tensor] = []

    def update(self, scores: torch.Tensor, labels: torch.Tensor) -> None:
        self.scores.append(scores)
        self.labels.append(labels)

    def compute(self) -> float:
        scores, labels = self._whole(torch.cat(self.scores)), self._whole(torch.cat(self.labels))
        return (scores.argmax(1) == labels).float().mean().item()

    def _whole(self, own: torch.Tensor) -> torch.Tensor:
        parts = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, own)
        return torch.cat(parts)


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, CLASSES)))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    clock = OwnClock()
    for _ in range(2):
        clock.epoch()
        metric = Ranking()
        for step in range(STEPS):
            x, y = torch.randn(BATCH, 64), torch.randint(0, CLASSES, (BATCH,))
            optimizer.zero_grad()
            out = model(x)
            nn.functional.cross_entropy(out, y).backward()
            optimizer.step()
            metric.update(out.detach().softmax(1), y)
            if FAULT or step == STEPS - 1:
                metric.compute()
            clock.step()
    clock.done()
    dist.destroy_process_group()
