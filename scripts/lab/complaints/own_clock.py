"""What the scripts in this folder share: the form that is asked for, and a clock that knows nothing of ddlprof."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable

import torch
from torch import nn

FAULT = sys.argv[1:] != ["cured"]
"""Whether the script shows its fault; `python SCRIPT cured` shows it mended."""
SKIPPED = 6
"""The first steps, which are not in the mean."""


class OwnClock:
    """Times steps and the whole training."""

    def __init__(self) -> None:
        self._start = self._last = time.perf_counter()
        self._steps: list[float] = []
        self._firsts: set[int] = set()

    def epoch(self) -> None:
        """An epoch begins: its first step is not in the mean."""
        self._firsts.add(len(self._steps))

    def step(self) -> None:
        """A step ends."""
        now = time.perf_counter()
        self._steps.append(now - self._last)
        self._last = now

    def train(self, model: nn.Module, optimizer: torch.optim.Optimizer, batches: Iterable[list[torch.Tensor]]) -> None:
        """Trains a classifier with these batches, as anybody does, a step for each."""
        for x, y in batches:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            self.step()

    def done(self, **more: object) -> None:
        """The training ends: says how long its mean step and all of it took."""
        wall_s = time.perf_counter() - self._start
        kept = [s for n, s in enumerate(self._steps) if n >= SKIPPED and n not in self._firsts] or self._steps
        said = {"steps": len(self._steps), "step_ms": 1e3 * sum(kept) / len(kept), "wall_s": wall_s, **more}
        sys.stderr.write(f"OWN {json.dumps(said)}\n")
        sys.stderr.flush()
