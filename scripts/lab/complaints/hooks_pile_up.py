# EleutherAI/bergson#55 huggingface/peft#2761: one more hook is registered in every step; cure: its handle is removed
from __future__ import annotations

import torch
from own_clock import FAULT, OwnClock
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    data = TensorDataset(torch.randn(64_000, 64), torch.randint(0, 10, (64_000,)))
    clock = OwnClock()
    means: list[torch.Tensor] = []

    def note(module: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        means.append(output.detach().mean())

    for x, y in DataLoader(data, batch_size=64):
        means.clear()
        handle = model[1].register_forward_hook(note)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        if not FAULT:
            handle.remove()
        clock.step()
    clock.done()
