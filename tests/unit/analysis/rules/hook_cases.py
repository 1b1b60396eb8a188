"""Facts about communication hooks of which the rules speak, and those about which they must not say a word."""

from __future__ import annotations

from typing import Any

from ddlprof.analysis.rules.facts import Facts
from tests.unit.analysis.rules.made_up import ddp, facts


def hooked(backward_ms: float = 40.0, step_ms: float = 100.0, **known: Any) -> Facts:
    """Two ranks under DDP with a hook of the script, forward 5 ms."""
    means: dict[str, float | None] = {"compute": backward_ms + 6, "comm": 5.0, "other": step_ms - backward_ms - 11}
    means |= {"compute_forward": 5.0, "compute_backward": backward_ms}
    return facts(means, **{"strategy": "ddp", "world_size": 2, "comm_hook": "train.largest"} | known)


SPEAKS: dict[str, list[Facts]] = {"comm_hook": [hooked(), hooked(26.0, device="cpu")]}

SILENT: dict[str, list[Facts]] = {
    "comm_hook": [
        hooked(comm_hook=""),
        hooked(comm_hook=None),
        hooked(comm_hook="torch.distributed.algorithms.ddp_comm_hooks.default_hooks.fp16_compress_hook"),
        hooked(strategy="fsdp"),
        hooked(world_size=1),
        hooked(24.0),  # not five times forward
        hooked(26.0, 300.0),
        ddp(30, comm_hook="train.largest"),  # forward is not told
    ],
}
