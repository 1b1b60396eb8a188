"""Records for short moments when torch's operators run in the training thread, by torch's oldest and lightest profiler.

That profiler belongs to one thread, starts in microseconds and writes nothing. Torch allows a thread only one profiler:
ours stops when the script starts its own, and never starts while the script's is on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from ddlprof.collect.hooks.context import HookContext
from ddlprof.collect.install import Uninstall, all_of, replace
from ddlprof.collect.recorder import Recorder
from ddlprof.collect.steps.loop import OperatorLog
from ddlprof.torch_private import profiler


class LegacyProfiler(OperatorLog):
    """The log of operators that torch's legacy profiler keeps.

    Making one raises AttributeError or TypeError if this torch lacks that profiler.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._enabled: Callable[[], bool]
        self._enabled, self._enable, self._disable = profiler.of_operators(torch)
        self._config = profiler.config(torch, "CPU")

    def start(self) -> bool:
        if self._enabled() or self._torch.compiler.is_compiling():
            return False
        try:
            self._enable(self._config)
        except RuntimeError:
            return False
        return True

    def stop(self) -> Any:
        try:
            return partial(_operators, self._disable())
        except RuntimeError:
            return None


def _operators(threads: Any) -> list[tuple[int, int]]:
    """The start and end of the outermost operators of the thread that was watched, in nanoseconds since the start."""
    found: list[tuple[int, int]] = []
    for events in threads:
        origin, depth, begin = 0, 0, 0
        for event in events:
            kind, now = event.kind(), round(1000 * event.start_us())
            origin = origin or now  # the first one marks the start
            if kind == "push":
                if not depth:
                    begin = now
                depth += 1
            elif kind == "pop" and depth:
                depth -= 1
                if not depth:
                    found.append((begin - origin, now - origin))
    return sorted(found)


def install(context: HookContext) -> Uninstall:
    """Lets gaps be inspected by the profiler. Raises AttributeError or TypeError if torch lacks that profiler."""
    torch, recorder = context.torch, context.recorder
    log = LegacyProfiler(torch)
    places = [(getattr(torch.autograd, module), name) for module, names in profiler.STARTS.items() for name in names]
    uninstalls = [replace(module, name, _making_way(recorder, vars(module)[name])) for module, name in places]
    watch = recorder.loop
    none, watch.log = watch.log, log

    def stop_looking() -> None:
        watch.close_log()
        watch.log = none

    return all_of(*uninstalls, stop_looking)


def _making_way(recorder: Recorder, original: Callable[..., Any]) -> Callable[..., Any]:
    def start(*args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() == recorder.thread:  # each thread has a profiler of its own
            recorder.loop.close_log()
        return original(*args, **kwargs)

    return start
