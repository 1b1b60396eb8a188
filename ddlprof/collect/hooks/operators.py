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
from ddlprof.torch_private import engine, profiler


class LegacyProfiler(OperatorLog):
    """The log of operators that torch's legacy profiler keeps.

    Making one raises AttributeError or TypeError if this torch lacks that profiler.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._enabled: Callable[[], bool]
        self._enabled, self._enable, self._disable = profiler.of_operators(torch)
        self._config = profiler.config(torch, "CPU")
        self._recorded = engine.recorded_operations(torch)

    def start(self) -> bool:
        if self._enabled() or self._torch.compiler.is_compiling():
            return False
        try:
            self._enable(self._config)
        except RuntimeError:
            return False
        return True

    def stop(self, recorded: bool = False) -> Any:
        try:
            until = self._recorded() if recorded and self._recorded is not None else None
            return partial(_operators, self._disable(), until)
        except RuntimeError:
            return None


def _operators(threads: Any, recorded: int | None = None) -> list[tuple[int, int]]:
    """The start and end of the outermost operators of the thread that was watched, in nanoseconds since the start.

    `recorded`: the number of operations that autograd has recorded in the end; only those count then from the first on
    that it recorded. Each operator that it may record bears the number of those before it.
    """
    found: list[tuple[int, int]] = []
    numbers: list[int] = []
    for events in threads:
        origin, depth, begin, number = 0, 0, 0, -1
        for event in events:
            kind, now = event.kind(), round(1000 * event.start_us())
            origin = origin or now  # the first one marks the start
            if kind == "push":
                if not depth:
                    begin, number = now, -1
                if number < 0 and recorded is not None:
                    number = event.sequence_nr()
                depth += 1
            elif kind == "pop" and depth:
                depth -= 1
                if not depth:
                    found.append((begin - origin, now - origin))
                    numbers.append(number)
    return sorted(found if recorded is None else found[_first_recorded(numbers, recorded) :])


def _first_recorded(numbers: list[int], recorded: int) -> int:
    """The place of the first operator that autograd recorded: the last one before which it had recorded no other."""
    told = [(number, place) for place, number in enumerate(numbers) if number >= 0]
    lowest = min(told, default=(recorded, 0))[0]
    if lowest >= recorded:
        return len(numbers)
    return max(place for number, place in told if number == lowest)


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
