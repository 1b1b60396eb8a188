"""How a job is spread over its ranks, and which ways can be predicted: data parallelism, whole or sharded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from recommender.errors import PredictionError


class Shares(NamedTuple):
    """The shares that one rank holds, from 0 to 1."""

    parameters: float = 1.0
    gradients: float = 1.0
    states: float = 1.0


@dataclass(frozen=True)
class Strategy:
    """What the predictor needs to know of a way of spreading a job: adding one is adding an entry to `STRATEGIES`."""

    basis: str | None = None
    """One sentence for `Estimate.basis`; None for the strategy that the coefficients were fitted on."""
    bytes_factor: float = 1.0
    """The bytes sent for an update, relative to an all-reduce of the gradients."""
    sharded_states: float = 0.0
    """The share of weights, gradients and optimizer states that the ranks divide; every rank holds the rest."""
    sharded: tuple[str, ...] = ()
    """What it is that they divide: names of `Shares`."""

    def held_share(self, world_size: int) -> float:
        """The share of the states that one of `world_size` ranks holds, from 0 to 1."""
        return 1.0 - self.sharded_states + self.sharded_states / world_size

    def shares(self, world_size: int) -> Shares:
        """What one of `world_size` ranks holds."""
        return Shares(**dict.fromkeys(self.sharded, 1.0 / world_size))


_ALL = Shares._fields
STRATEGIES = {
    "ddp": Strategy(),
    # FSDP gathers parameters twice and scatters gradients once: three transfers where an all-reduce does two.
    "fsdp": Strategy("parameters sharded (fsdp, ZeRO-3): 1.5 times the bytes of an all-reduce", 1.5, 1.0, _ALL),
    # Of Adam's 16 bytes for each parameter, ZeRO-1 divides the 8 of the two moments, ZeRO-2 the 4 of gradients too.
    "zero": Strategy(
        "optimizer states sharded (ZeRO-1, ZeRO-2): as many bytes as an all-reduce", 1.0, 0.5, ("states",)
    ),
    "zero2": Strategy(
        "optimizer states and gradients sharded (ZeRO-2): as many bytes as an all-reduce", 1.0, 0.75, _ALL[1:]
    ),
}
"""fsdp: parameters are sharded (ZeRO-3 too); zero: only the optimizer's states (ZeRO-1, and a run of ZeRO-2);
zero2: gradients too."""


def held_share(strategy: str, world_size: int) -> float:
    """The share of the states that one of `world_size` ranks holds; all of them under an unknown strategy."""
    return strategy_named(strategy).held_share(world_size)


def strategy_named(name: str) -> Strategy:
    """The strategy of that name; nothing is sharded under one that is not known."""
    return STRATEGIES.get(name, Strategy())


_NAMES = {
    "tp": "tensor parallelism",
    "pp": "pipeline parallelism",
    "dp": "torch.nn.DataParallel",
    "other": "ranks divided in a way that ddlprof does not know",
}


def check_measured_strategy(strategy: str) -> None:
    """Raises `PredictionError` for a strategy whose steps say nothing about other machines."""
    if strategy in STRATEGIES:
        return
    named = [_NAMES.get(part, repr(part)) for part in strategy.split("+") if part not in STRATEGIES]
    raise PredictionError(
        f"a job trained with {' and '.join(named)} ({strategy}) cannot be predicted, only data parallelism"
        f" ({', '.join(STRATEGIES)}) is: measure it trained like that, or start from the model alone:"
        " ddlprof features MODULE:FACTORY --input SHAPE -o FILE, then FILE and --batch in place of the run"
    )
