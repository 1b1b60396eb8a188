"""Lightning's Trainer; `lightning_fit.py STRATEGY DEVICES`."""

from __future__ import annotations

import logging
import sys
from typing import Any

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from written import write

STEPS, BATCH, WIDTH = 40, 16, 256


class Module(lightning.LightningModule):
    """A classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(WIDTH, 512), nn.ReLU(), nn.BatchNorm1d(512), nn.Linear(512, 10))

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-3)

    def on_fit_end(self) -> None:
        if self.trainer.is_global_zero:
            write(self.trainer.global_step, self.net.state_dict())


def main() -> None:
    strategy, devices = (sys.argv[1], int(sys.argv[2])) if len(sys.argv) > 2 else ("auto", 1)
    logging.getLogger("lightning").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    lightning.seed_everything(0, verbose=False)
    samples = STEPS * BATCH * devices
    loader = DataLoader(TensorDataset(torch.randn(samples, WIDTH), torch.randint(10, (samples,))), batch_size=BATCH)
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", devices=devices, strategy=strategy, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Module(), loader)


if __name__ == "__main__":
    main()
