"""Trains networks of `ten_models` in each precision with a small and a large batch: step times and peak memory."""

from __future__ import annotations

import gc
import time
from typing import Any

import common
import torch
from ten_models import MODELS, batch_of

PRECISIONS = ("fp32", "tf32", "bf16")
_WARM = 3


def measured(name: str, precision: str, batch: int, steps: int) -> dict[str, Any]:
    """One row: the median step by events, the host's part of a step, and the most that was allocated and reserved."""
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    gc.collect()
    if not common.REHEARSAL:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    model = MODELS[name].make().to(common.DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    x = batch_of(name, batch, common.DEVICE)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(common.DEVICE, torch.bfloat16, enabled=precision == "bf16"):
            loss = model(x)
        loss.backward()
        optimizer.step()

    for _ in range(_WARM):
        step()
    common.synchronize()
    clock, begin = common.Steps(), time.perf_counter()
    for _ in range(steps):
        step()
        clock.mark("end")
    host_s = (time.perf_counter() - begin) / steps
    seconds = sorted(row["step"] for row in clock.table())
    row = {
        "model": name,
        "precision": precision,
        "batch": batch,
        "host_s": host_s,
        "step_s": seconds[len(seconds) // 2],
    }
    if not common.REHEARSAL:
        row["allocated"] = torch.cuda.max_memory_allocated()
        row["reserved"] = torch.cuda.max_memory_reserved()
    return row


def main() -> None:
    """Writes the rows; what does not fit or fails is a row with the error."""
    parser = common.parser(__doc__)
    parser.add_argument("--models", required=True, help="names, with commas")
    parser.add_argument("--precisions", default=",".join(PRECISIONS))
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for name in args.models.split(","):
        for precision in args.precisions.split(","):
            for batch in (MODELS[name].small, MODELS[name].large):
                chosen = min(batch, 4) if common.REHEARSAL else batch
                try:
                    rows.append(measured(name, precision, chosen, args.steps))
                except RuntimeError as error:  # out of memory, for one
                    said = str(error).partition("\n")[0][:200]
                    rows.append({"model": name, "precision": precision, "batch": chosen, "error": said})
                common.write(args.truth, {"rows": rows, "device": _device()})


def _device() -> str:
    return "" if common.ON_HOST else str(torch.cuda.get_device_name())


if __name__ == "__main__":
    main()
