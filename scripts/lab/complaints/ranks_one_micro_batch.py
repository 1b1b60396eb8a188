# facebookresearch/fairscale#51: a pipeline of two stages gets the batch as one; cure: four micro-batches
from __future__ import annotations

import time

import torch
import torch.distributed as dist
from own_clock import FAULT, OwnClock
from torch import nn

BATCH, WIDTH, CHUNKS = 64, 256, 1 if FAULT else 4


def compute(rows: torch.Tensor) -> None:
    time.sleep(1e-3 * len(rows))  # stands for a device, forward and backward


class Stage(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        compute(x)
        out: torch.Tensor = super().forward(x)  # type: ignore[no-untyped-call]
        out.register_hook(compute)
        return out


def step_of_stage(model: nn.Module, first: bool) -> None:
    made, sent = [], []
    for part in torch.randn(BATCH, WIDTH).chunk(CHUNKS):
        if not first:
            dist.recv(part, 0)
            part.requires_grad_()
        made.append(model(part))
        if first:
            sent.append(dist.isend(made[-1].detach(), 1))
        else:
            (nn.functional.cross_entropy(made[-1], torch.randint(0, 10, (len(part),))) / CHUNKS).backward()
            assert part.grad is not None
            sent.append(dist.isend(part.grad, 0))
    for out in made if first else ():
        dist.recv(gradient := torch.empty_like(out), 1)
        out.backward(gradient)
    for each in filter(None, sent):
        each.wait()


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    is_first = dist.get_rank() == 0
    model = Stage(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH if is_first else 10))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    clock = OwnClock()
    for _ in range(30):
        optimizer.zero_grad()
        step_of_stage(model, is_first)
        optimizer.step()
        clock.step()
    clock.done()
    dist.destroy_process_group()
