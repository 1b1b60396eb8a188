"""A DeepSpeed engine with ZeRO stage 1."""

from __future__ import annotations

import deepspeed
import torch
from torch import nn
from written import write

STEPS, BATCH, WIDTH = 40, 16, 256


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    deepspeed.init_distributed("gloo")
    net = nn.Sequential(nn.Linear(WIDTH, 512), nn.ReLU(), nn.Linear(512, 10))
    engine, *_ = deepspeed.initialize(
        model=net,
        model_parameters=net.parameters(),
        config={
            "train_micro_batch_size_per_gpu": BATCH,
            "optimizer": {"type": "Adam", "params": {"lr": 1e-3, "torch_adam": True}},
            "zero_optimization": {"stage": 1},
        },
    )
    for _ in range(STEPS):
        x, y = torch.randn(BATCH, WIDTH), torch.randint(10, (BATCH,))
        engine.backward(nn.functional.cross_entropy(engine(x), y))
        engine.step()
    if torch.distributed.get_rank() == 0:
        write(engine.global_steps, net.state_dict())
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
