"""How long torch.compile compiles, in whichever thread: outermost frames, with the backend's work.

Graphs that are compiled or tuned only when they first run (a deferred backward, kernels of Triton) are not in it.
"""

from __future__ import annotations

from ddlprof.base.real_time import time
from ddlprof.collect.compiler.dynamo import around_tracing
from ddlprof.collect.hook_context import HookContext
from ddlprof.collect.install import Uninstall
from ddlprof.model.records import COMPILATION


def install(context: HookContext) -> Uninstall:
    """Nothing is imported before the script uses torch.compile."""
    spans, begins = context.recorder.spans, list[int]()  # dynamo lets one thread compile at a time

    def begin() -> None:
        begins.append(time.perf_counter_ns())

    def end() -> None:
        if not begins:
            return
        since = begins.pop()
        steps.due = True
        if not begins:
            spans.append((COMPILATION, since, time.perf_counter_ns()))

    def imported(calls: bool) -> None:
        begins.clear()  # importing is no compiling
        steps.hears_of_compilations = calls

    steps = context.steps
    steps.hears_of_compilations = True
    return around_tracing(begin, end, imported)
