"""A loop with accelerate's Accelerator, gradients accumulated over two batches."""

from __future__ import annotations

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from written import write

STEPS, BATCH, WIDTH = 40, 16, 256


def main() -> None:
    set_seed(0)
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    samples = 2 * STEPS * BATCH * accelerator.num_processes
    loader = DataLoader(TensorDataset(torch.randn(samples, WIDTH), torch.randint(10, (samples,))), batch_size=BATCH)
    net = nn.Sequential(nn.Linear(WIDTH, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    model, optimizer, loader = accelerator.prepare(net, torch.optim.AdamW(net.parameters()), loader)
    steps = 0
    for x, y in loader:
        with accelerator.accumulate(model):
            accelerator.backward(nn.functional.cross_entropy(model(x), y))
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            steps += accelerator.sync_gradients
    if accelerator.is_main_process:
        write(steps, net.state_dict())
    accelerator.end_training()


if __name__ == "__main__":
    main()
