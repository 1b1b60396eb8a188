"""Facts about communication hooks of which the rules speak, and those about which they must not say a word."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ddlprof.analysis.rules.facts import Facts
from ddlprof.model.operators import Operator
from tests.unit.analysis.rules.made_up import ddp, facts

PLAIN = (
    "allreduce_hook",
    "bf16_compress_hook",
    "fp16_compress_wrapper.<locals>.fp16_compress_wrapper_hook",
    "noop_hook",
    "post_localSGD_hook",
    "_reducer_allreduce_and_upcast_hook",
    "_apply_optim_in_backward_hook.<locals>.apply_optim_in_backward_hook",
    "_hook_then_optimizer.<locals>.hook_then_optimizer_wrapper",
    "hook_with_zero_step.<locals>.hook_with_zero_fn",
    "partial",
)
"""Hooks of torch's that only cast or average, that update too, or that DDP sets itself; and one without a name."""


def passes(times: float = 2.0) -> tuple[Operator, ...]:
    """A product in forward, and a backward that takes so many times as long by its operations."""
    each = Operator("product", "forward", "mm", "fp32", (1, 64, 64, 64), 1e8, 1e5, 1.0, 1.0, grows=1)
    return each, Operator("product", "backward", "mm", "fp32", (1, 64, 64, 64), times * 1e8, 1e5, 1.0, 1.0, grows=1)


def hooked(backward_ms: float = 40.0, step_ms: float = 100.0, **known: Any) -> Facts:
    """Two ranks of one machine under DDP with a hook of the script, forward 5 ms."""
    means: dict[str, float | None] = {"compute": backward_ms + 6, "comm": 5.0, "other": step_ms - backward_ms - 11}
    means |= {"compute_forward": 5.0, "compute_backward": backward_ms}
    usual = {"strategy": "ddp", "world_size": 2, "ranks_per_node": 2, "comm_hook": "largest_alone"}
    return facts(means, **usual | {"operators": passes(), "device": "cpu"} | known)


SPEAKS: dict[str, list[Facts]] = {
    "comm_hook": [
        hooked(),
        hooked(26.0),
        hooked(comm_hook="powerSGD_hook", device=facts().device),
        hooked(comm_hook="main.<locals>.largest_alone"),
    ]
}

SILENT: dict[str, list[Facts]] = {
    "comm_hook": [
        hooked(comm_hook=""),
        hooked(comm_hook=None),
        *(hooked(comm_hook=name) for name in PLAIN),
        hooked(strategy="fsdp"),
        hooked(world_size=1, ranks_per_node=1),
        hooked(ranks_per_node=1),  # links between machines are slow
        hooked(24.0),  # not five times forward
        hooked(26.0, 300.0),
        hooked(operators=()),
        hooked(operators=passes(4.0)),  # as with a dense embedding
        hooked(operators=(*passes(), replace(passes()[0], kind="other", shape=(64,)))),  # as a second derivative
        hooked(repeated_share=0.4),  # several losses
        ddp(30, comm_hook="largest_alone", ranks_per_node=2, operators=passes()),  # forward is not told
    ],
}
