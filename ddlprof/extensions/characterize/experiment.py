"""The experiments of `ddlprof characterize`, and how a run learns that it is one."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from ddlprof.model.options import AddedHooks

ONE_REPLAYED = "one-replayed"
ALL_REPLAYED = "all-replayed"
COLD = "cold"
WARM = "warm"
EXPERIMENTS = (ONE_REPLAYED, ALL_REPLAYED, WARM, COLD)
"""The experiments in the order in which they run."""
NETWORK = "network-run"
"""A run on several machines that the user provides."""
HOOKS = "experiment"
"""The name of its hooks in a note."""


@dataclass(frozen=True)
class Experiment:
    """How one run of `ddlprof characterize` differs from the training. It runs the same script."""

    steps: int
    """The number of steps after which the script is ended, not counting warm-up."""
    replayed: bool = False
    """Whether loaders hand out one batch again and again instead of reading."""
    drop_cache: bool = False
    """Whether files that the loaders have read are dropped from the page cache when another epoch begins."""

    def environment(self) -> dict[str, str]:
        """The environment variables by which a run finds its experiment."""
        return AddedHooks(HOOKS, "ddlprof.extensions.characterize.collect.setup", asdict(self)).environment()
