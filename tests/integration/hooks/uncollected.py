"""Trains an idiom of `scripts/jobs` with the garbage collector off, and prints by how many bytes a step makes it grow.

`python uncollected.py NAME`. What a step works on is large: a few steps that are kept are seen.
"""

from __future__ import annotations

import gc
import resource
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[3] / "scripts" / "jobs"))

import idioms
import torch
from truth import Truth

BEFORE, STEPS = 40, 120
"""The steps before the first reading, and all steps."""


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def main() -> None:
    torch.set_num_threads(1)
    readings: list[int] = []
    ends = Truth.step

    def step(self: Truth) -> None:
        ends(self)
        readings.append(resident_bytes())

    Truth.step = step  # type: ignore[method-assign]
    gc.collect()
    gc.freeze()
    gc.disable()
    idioms.train(sys.argv[1], STEPS)
    last = readings[BEFORE:]
    print("GREW", (min(last[-10:]) - min(last[:10])) // (len(last) - 10))


if __name__ == "__main__":
    main()
