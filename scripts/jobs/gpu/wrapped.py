"""A GPT alone, in DDP or under FSDP2 in a group of one rank: step time, the host's part of it, and peak memory."""

from __future__ import annotations

import time

import common
import torch
import torch.distributed as dist
from models import loss_of, make
from ranks import join
from torch import nn
from torch.nn.parallel import DistributedDataParallel

KINDS = ("plain", "ddp", "fsdp2")


def wrapped(kind: str, model: nn.Module) -> nn.Module:
    """The model as a script of such a kind has it."""
    if kind == "ddp":
        return DistributedDataParallel(model)
    if kind == "fsdp2":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh(common.DEVICE, (1,))
        for block in model.blocks:  # type: ignore[union-attr]
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    return model


def main() -> None:
    """Warms up, times the rest, and writes it."""
    parser = common.parser(__doc__)
    parser.add_argument("--kind", choices=KINDS, required=True)
    parser.add_argument("--warmup", type=int, default=10)
    args = parser.parse_args()
    join()
    torch.manual_seed(0)
    model, batches = make("gpt", bool(common.REHEARSAL), common.DEVICE)
    model = wrapped(args.kind, model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(common.DEVICE, torch.bfloat16):
            loss = loss_of(model, batches())
        loss.backward()
        optimizer.step()

    for _ in range(args.warmup):
        step()
    common.synchronize()
    begin = time.perf_counter()
    for _ in range(args.steps):
        step()
    host = time.perf_counter()
    common.synchronize()
    content = {"step_s": (time.perf_counter() - begin) / args.steps, "host_s": (host - begin) / args.steps}
    peak = 0 if common.ON_HOST else torch.cuda.max_memory_allocated()
    common.write(args.truth, {**content, "allocated": peak})
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
