"""How a job is spread over its ranks, and which of that can be predicted: data parallelism, whole or sharded."""

from __future__ import annotations

from recommender.errors import PredictionError

STRATEGIES = ("ddp", "fsdp", "zero")
"""fsdp: parameters are sharded (ZeRO-3 too); zero: only the optimizer's states, or gradients too (ZeRO-1 and 2)."""

_NAMES = {
    "tp": "tensor parallelism",
    "pp": "pipeline parallelism",
    "dp": "torch.nn.DataParallel",
    "other": "ranks divided in a way that ddlprof does not know",
}


def check_measured_strategy(strategy: str) -> None:
    """Raises `PredictionError` for one whose steps say nothing about other machines."""
    if strategy in STRATEGIES:
        return
    named = [_NAMES.get(part, repr(part)) for part in strategy.split("+") if part not in STRATEGIES]
    raise PredictionError(
        f"a job trained with {' and '.join(named)} ({strategy}) cannot be predicted, only data parallelism"
        f" ({', '.join(STRATEGIES)}) is: measure it trained like that, or start from the model alone:"
        " ddlprof features MODULE:FACTORY --input SHAPE -o FILE, then FILE and --batch in place of the run"
    )
