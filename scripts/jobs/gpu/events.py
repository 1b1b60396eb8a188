"""What a pair of events costs the host: recorded on a stream that is kept busy, as ours are in a step."""

from __future__ import annotations

import time

import common
import torch

PAIRS = 200


def main() -> None:
    """The median over rounds, of events that are used again as ddlprof's are."""
    parser = common.parser(__doc__)
    args = parser.parse_args()
    sleeper = common.Sleeper()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2 * PAIRS)]
    rounds = []
    for _ in range(args.steps):
        sleeper(1.0)
        begin = time.perf_counter()
        for event in events:
            event.record()
        rounds.append((time.perf_counter() - begin) / PAIRS)
        torch.cuda.synchronize()
    begin = time.perf_counter()
    for first, second in zip(events[::2], events[1::2], strict=True):
        first.elapsed_time(second)
    read_s = (time.perf_counter() - begin) / PAIRS
    common.write(args.truth, {"pair_s": sorted(rounds)[len(rounds) // 2], "read_s": read_s})


if __name__ == "__main__":
    main()
