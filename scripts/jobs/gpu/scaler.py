"""Fused AdamW with a GradScaler, as mixed precision in half floats has it; two updates are skipped for an infinity."""

from __future__ import annotations

import common
import torch
from torch import nn

SKIPPED = (10, 20)
WIDTH = 128


def main() -> None:
    """Trains, and writes the parameters' sum and how often the device was asked."""
    args = common.parser(__doc__).parse_args()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)).to(common.DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    scaler = torch.amp.GradScaler(common.DEVICE, init_scale=2.0**10)
    x, bad = torch.randn(64, WIDTH).to(common.DEVICE), torch.full((64, WIDTH), torch.inf).to(common.DEVICE)
    steps = common.Steps()
    for number in range(args.steps):
        optimizer.zero_grad()
        with torch.autocast(common.DEVICE, torch.bfloat16 if common.REHEARSAL else torch.float16):
            loss = model(bad if number in SKIPPED else x).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        steps.mark("end")
    table = steps.table()
    total = float(sum(p.detach().double().sum().cpu() for p in model.parameters()))
    common.write(args.truth, {"steps": table, "parameters": total})


if __name__ == "__main__":
    main()
