"""Strategies of distributing a job over its ranks that can be predicted: data parallelism, plain or sharded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ddlprof.recommender.errors import PredictionError


class Shares(NamedTuple):
    """The shares of weights, gradients and optimizer states that one rank holds, from 0 to 1."""

    parameters: float = 1.0
    gradients: float = 1.0
    states: float = 1.0


@dataclass(frozen=True)
class Strategy:
    """A strategy as the predictor needs it. To add one, add an entry to `STRATEGIES`."""

    basis: str | None = None
    """One sentence for `Estimate.basis`; None for the strategy that the coefficients were fitted on."""
    bytes_factor: float = 1.0
    """The bytes sent for an update, relative to an all-reduce of the gradients."""
    sharded_states: float = 0.0
    """The share of all states (weights, gradients, optimizer states) that is sharded; every rank holds the rest."""
    sharded: tuple[str, ...] = ()
    """The kinds of state that are sharded: fields of `Shares`."""
    gathered_factor: float = 0.0
    """The part of `bytes_factor` that brings the weights together, frozen ones included."""
    deepspeed: int | None = None
    """The stage of ZeRO that DeepSpeed does, which handles gradients by parameter and updates copies in fp32."""

    def held_share(self, world_size: int) -> float:
        """The share of all states that one of `world_size` ranks holds, from 0 to 1."""
        return 1.0 - self.sharded_states + self.sharded_states / world_size

    def shares(self, world_size: int) -> Shares:
        """The shares, by kind of state, that one of `world_size` ranks holds."""
        return Shares(**dict.fromkeys(self.sharded, 1.0 / world_size))


_ALL = Shares._fields
STRATEGIES = {
    "ddp": Strategy(),
    # FSDP all-gathers parameters twice and reduce-scatters gradients once: three transfers, an all-reduce has two.
    "fsdp": Strategy("parameters sharded (fsdp, ZeRO-3): 1.5 times the bytes of an all-reduce", 1.5, 1.0, _ALL, 1.0),
    # Adam keeps 16 bytes per parameter: ZeRO-1 shards the 8 of the two moments, ZeRO-2 also the 4 of the gradient.
    "zero": Strategy(
        "optimizer states sharded (ZeRO-1, ZeRO-2): as many bytes as an all-reduce", 1.0, 0.5, ("states",)
    ),
    "zero2": Strategy(
        "optimizer states and gradients sharded (ZeRO-2): as many bytes as an all-reduce", 1.0, 0.75, _ALL[1:]
    ),
    "deepspeed-zero2": Strategy(
        "ZeRO-2 by DeepSpeed: gradients handled by parameter, updates in fp32", 1.0, 0.75, _ALL[1:], deepspeed=2
    ),
    "deepspeed-zero3": Strategy(
        "ZeRO-3 by DeepSpeed: parameters gathered one by one, updates in fp32", 1.5, 1.0, _ALL, 1.0, deepspeed=3
    ),
}
"""fsdp: parameters are sharded (also ZeRO-3); zero: only optimizer states (ZeRO-1, and a measured run of ZeRO-2);
zero2: gradients too; deepspeed-zero2, deepspeed-zero3: by DeepSpeed, whose host has more to do."""


def held_share(strategy: str, world_size: int) -> float:
    """The share of all states that one of `world_size` ranks holds; 1 under an unknown strategy."""
    return strategy_named(strategy).held_share(world_size)


def strategy_named(name: str) -> Strategy:
    """The strategy of that name; an unknown one is taken for plain data parallelism."""
    return STRATEGIES.get(name, Strategy())


_NAMES = {
    "tp": "tensor parallelism",
    "pp": "pipeline parallelism",
    "cp": "context parallelism",
    "ep": "expert parallelism",
    "dp": "torch.nn.DataParallel",
    "other": "ranks divided in a way that ddlprof does not know",
}


def check_measured_strategy(strategy: str) -> None:
    """Raises `PredictionError` for a strategy that cannot be predicted."""
    if strategy in STRATEGIES:
        return
    named = [_NAMES.get(part, repr(part)) for part in strategy.split("+") if part not in STRATEGIES]
    raise PredictionError(
        f"a job trained with {' and '.join(named)} ({strategy}) cannot be predicted, only data parallelism"
        f" ({', '.join(STRATEGIES)}) is: measure it trained like that, or start from the model alone:"
        " ddlprof features MODULE:FACTORY --input SHAPE -o FILE, then FILE and --batch in place of the run"
    )
