# huggingface/accelerate#785 EleutherAI/gpt-neox#198: rank 0 alone logs pictures, the others wait for it; cure: seldom
from __future__ import annotations

import tempfile
import zlib
from pathlib import Path

import torch
import torch.distributed as dist
from own_clock import FAULT, OwnClock
from torch import nn

EVERY, SIDE = 1 if FAULT else 50, 24


def log_pictures(made: torch.Tensor, step: int, folder: Path) -> None:
    grid = made.detach().view(8, 8, SIDE, SIDE).permute(0, 2, 1, 3).reshape(8 * SIDE, 8 * SIDE)
    pixels = (grid.clamp(0, 1) * 255).byte().repeat_interleave(2, 0).repeat_interleave(2, 1)
    (folder / f"{step % 10}.z").write_bytes(zlib.compress(pixels.numpy().tobytes(), 9))


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    net = nn.Sequential(nn.Linear(SIDE * SIDE, 256), nn.ReLU(), nn.Linear(256, SIDE * SIDE))
    model = nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    clock = OwnClock()
    with tempfile.TemporaryDirectory() as folder:
        for step in range(150):
            x = torch.rand(64, SIDE * SIDE)
            optimizer.zero_grad()
            made = model(x)
            nn.functional.mse_loss(made, x).backward()
            optimizer.step()
            if dist.get_rank() == 0 and step % EVERY == 0:
                log_pictures(made, step, Path(folder))
            clock.step()
    clock.done()
    dist.destroy_process_group()
