"""The experiments of `ddlprof characterize`, and how one is told to the processes that it consists of.

Each is a `ddlprof run` of the same script that differs from the user's training in what `Experiment` says. It is handed
down by environment, beside the options, through whatever launcher starts the processes.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass

EXPERIMENT_VARIABLE = "DDLPROF_EXPERIMENT"

ONE_REPLAYED = "one-replayed"
ALL_REPLAYED = "all-replayed"
COLD = "cold"
WARM = "warm"
EXPERIMENTS = (ONE_REPLAYED, ALL_REPLAYED, WARM, COLD)
"""The experiments in the order in which they run."""
NETWORK = "network-run"
"""A run on several machines that the user brings along."""


@dataclass(frozen=True)
class Experiment:
    """How one run differs from the training itself."""

    steps: int
    """The number of steps after which the script is ended, not counting warm-up."""
    replayed: bool = False
    """Whether loaders hand out one batch again and again instead of reading."""
    drop_cache: bool = False
    """Whether what the loaders have read is dropped from the page cache when another epoch begins."""

    def environment(self) -> dict[str, str]:
        """The variables by which a run finds its experiment."""
        return {EXPERIMENT_VARIABLE: json.dumps(asdict(self))}

    @classmethod
    def from_environment(cls) -> Experiment | None:
        """The experiment that this process is part of, if any; the variable is removed."""
        text = os.environ.pop(EXPERIMENT_VARIABLE, None)
        return cls(**json.loads(text)) if text else None
