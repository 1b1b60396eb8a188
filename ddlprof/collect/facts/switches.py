"""Looks now and then whether switches are on that make a training slower."""

from __future__ import annotations

import os
import sys
from collections import Counter
from typing import Any

from ddlprof.model.manifest import BLOCKING, DETAIL, PROFILER, TRACEMALLOC
from ddlprof.torch_private.profiler import records


class Switches:
    """What was seen at the looks of the helper thread, a few a second while the training computes, and of the training
    thread, ever more rarely (`look_at_hooks`)."""

    def __init__(self) -> None:
        self.deterministic: bool | None = None
        """Whether only deterministic algorithms were allowed at the last look."""
        self._looks = self._anomalies = 0
        self._hooks: list[str] = []
        self._modes: Counter[str] = Counter()
        self._last_modes: list[str] = []

    @property
    def anomaly_share(self) -> float | None:
        """The share of looks at which autograd's anomaly mode was on; None: nobody looked."""
        return self._anomalies / self._looks if self._looks else None

    @property
    def interpreter_hook(self) -> str | None:
        """What was called for each line or call of Python at most of the looks of `look_at_hooks`, such as `line:
        pydevd`; empty: nothing; None: nobody looked."""
        return sorted(self._hooks)[len(self._hooks) // 2] if self._hooks else None

    @property
    def debug_modes(self) -> str | None:
        """What was on for debugging at most of the looks of `look_at_hooks` and at the last one, as most looks are at
        the first steps, joined by commas; None: nobody looked."""
        on = [mode for mode in self._last_modes if self._modes[mode] > len(self._hooks) / 2]
        return ", ".join(on) if self._hooks else None

    def look_at_hooks(self) -> None:
        """Looks once what watches the training thread, in which it must be called."""
        tracer, profiler = sys.gettrace(), sys.getprofile()
        monitoring = getattr(sys, "monitoring", None)  # Python 3.12 and later
        if profiler is None and monitoring is not None:
            profiler = monitoring.get_tool(monitoring.PROFILER_ID)
        hook = tracer if tracer is not None else profiler
        name = hook if isinstance(hook, str) else str(getattr(hook, "__module__", None) or type(hook).__module__)
        known = {"__main__": "a function of the script"}
        name = known.get(name, name.partition(".")[0].lstrip("_"))
        self._hooks.append("" if hook is None else f"{'call' if tracer is None else 'line'}: {name}")
        self._last_modes = _debug_modes()
        self._modes.update(self._last_modes)

    def look(self) -> None:
        """Looks once."""
        torch: Any = sys.modules.get("torch")
        self._anomalies += bool(torch.is_anomaly_enabled())
        chosen = torch.are_deterministic_algorithms_enabled()
        self.deterministic = bool(chosen or (torch.cuda.is_initialized() and torch.backends.cudnn.deterministic))
        self._looks += 1


def _debug_modes() -> list[str]:
    torch, tracemalloc = sys.modules["torch"], sys.modules.get("tracemalloc")
    on = {
        PROFILER: records(torch),
        TRACEMALLOC: tracemalloc is not None and tracemalloc.is_tracing(),
        BLOCKING: os.environ.get(BLOCKING, "0") not in ("", "0") and torch.cuda.is_initialized(),
        DETAIL: _checks_collectives(torch.distributed),
    }
    return [mode for mode, is_on in on.items() if is_on]


def _checks_collectives(distributed: Any) -> bool:
    """Whether each collective is checked by others, as groups are that are made while `TORCH_DISTRIBUTED_DEBUG` is
    DETAIL."""
    if not distributed.is_available() or not distributed.is_initialized() or distributed.get_world_size() < 2:
        return False
    return bool(distributed.get_debug_level() == distributed.DebugLevel.DETAIL)
