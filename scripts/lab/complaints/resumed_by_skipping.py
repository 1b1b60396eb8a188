# huggingface/transformers#11284: a resumed training makes batches and throws them away; cure: a later begin
from __future__ import annotations

import torch
from own_clock import FAULT, OwnClock
from torch import nn
from torch.utils.data import DataLoader, Dataset

BATCH, HAD, MORE = 32, 250, 80


class Waves(Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return BATCH * (HAD + MORE)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        wave = torch.sin(torch.arange(16_000) * (1 + i % 7) / 50)
        return torch.stft(wave, 256, return_complex=True, window=torch.ones(256)).abs().mean(1), i % 7


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = Waves()
    order = torch.randperm(len(data)).tolist()
    loader = DataLoader(data, batch_size=BATCH, sampler=order if FAULT else order[HAD * BATCH :])
    model = nn.Sequential(nn.Linear(129, 256), nn.ReLU(), nn.Linear(256, 7))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    clock = OwnClock()
    for number, (x, y) in enumerate(loader):
        if FAULT and number < HAD:
            continue
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        clock.step()
    clock.done()
