"""How long this host takes to launch a small operator, timed once when the training has ended.

The operators are functions on tensors of the processor, not modules: nothing of the script's, such as hooks of all
modules or a default device, takes part, and no random number is drawn. Operators that torch may divide among threads,
such as layer norms, are not among them: on a busy machine they wait for their threads.
"""

from __future__ import annotations

from statistics import median
from typing import Any

from ddlprof.base.real_time import time
from ddlprof.torch_private.engine import no_torch_function

_ROWS, _WIDTH, _LAYERS = 4, 16, 8
"""So small that only launches take time."""
_OPERATORS = 4
"""Of a layer."""
_PASSES, _MOST_NS = 100, 50_000_000
"""A pass takes about 0.1 ms. On a busy machine, a few take as long as others have the processor."""


def launch_us(torch: Any) -> float | None:
    """Microseconds from one small operator to the next in forward, as the median of passes over small layers; None in
    autograd's anomaly mode, where each takes several times as long."""
    if torch.is_anomaly_enabled():
        return None
    linear, new = torch.nn.functional.linear, {"device": "cpu", "dtype": torch.float32}
    with no_torch_function(torch), torch.enable_grad():
        weight = torch.full((_WIDTH, _WIDTH), 0.1, requires_grad=True, **new)
        scale = torch.ones(_WIDTH, requires_grad=True, **new)
        rows = torch.ones((_ROWS, _WIDTH), **new)
        passes: list[int] = []
        while len(passes) < _PASSES and sum(passes) < _MOST_NS:
            begin, out = time.perf_counter_ns(), rows
            for _ in range(_LAYERS):
                out = torch.relu(linear(out, weight, scale)) * scale + rows
            passes.append(time.perf_counter_ns() - begin)
    return median(passes) / (_OPERATORS * _LAYERS) / 1000 or None
