"""Trains a network as anybody would and says how long a step took. Nothing is copied, loaded or printed."""

from __future__ import annotations

import time
from itertools import pairwise

import common
import torch
from models import loss_of, make


def main() -> None:
    """Warms up, then times all the rest as a whole and the host's part of it."""
    parser = common.parser(__doc__)
    parser.add_argument("--model", choices=("resnet50", "gpt", "toy"), required=True)
    parser.add_argument("--warmup", type=int, default=30)
    parser.add_argument("--layers", type=int, default=33, help="of the toy: about six kernels a step for each")
    parser.add_argument("--width", type=int, default=64, help="of the toy")
    args = parser.parse_args()
    torch.manual_seed(0)
    model, batches = make(args.model, bool(common.REHEARSAL), common.DEVICE, args.layers, args.width)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    bf16 = args.model != "toy"

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda" if torch.cuda.is_available() else "cpu", torch.bfloat16, enabled=bf16):
            loss = loss_of(model, batches())
        loss.backward()
        optimizer.step()

    for _ in range(args.warmup):
        step()
    common.synchronize()
    begin = time.perf_counter()
    launches = [begin]
    for _ in range(args.steps):
        step()
        launches.append(time.perf_counter())
    launched = launches[-1]
    common.synchronize()
    end = time.perf_counter()
    content = {"step_s": (end - begin) / args.steps, "host_s": (launched - begin) / args.steps}
    each = [after - before for before, after in pairwise(launches)]
    common.write(args.truth, {**content, "each_s": each})


if __name__ == "__main__":
    main()
