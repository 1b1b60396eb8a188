# pytorch/pytorch#146508 pytorch/pytorch#86550: 16-bit types on a processor that has none; cure: float32
from __future__ import annotations

from pathlib import Path

import torch
from own_clock import FAULT, OwnClock
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CPUINFO = Path("/proc/cpuinfo")
HAVE = {torch.float16: {"avx512_fp16", "fphp"}, torch.bfloat16: {"avx512_bf16", "amx_bf16", "bf16"}}
"""The flags of processors that compute in a type."""

if __name__ == "__main__":
    torch.set_num_threads(1)
    flags = set(CPUINFO.read_text().split()) if CPUINFO.exists() else set()
    lacking = next((kind for kind, having in HAVE.items() if not having & flags), None)
    kind = (lacking or torch.float16) if FAULT else torch.float32
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)).to(kind)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    loader = DataLoader(TensorDataset(torch.randn(1600, 64, dtype=kind), torch.randint(0, 10, (1600,))), batch_size=16)
    clock = OwnClock()
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x).float(), y).backward()
        optimizer.step()
        clock.step()
    clock.done(absent=lacking is None)  # then nothing is wrong
