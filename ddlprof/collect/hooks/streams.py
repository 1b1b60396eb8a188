"""Waits of the clock's stream, or of the host, for streams that carry collectives or host-to-device copies.

FSDP, ZeRO and prefetchers issue these on streams of their own. What torch.cuda's classes do between streams comes down
to `Event.record` and `Event.wait`, as `wait_stream` and `wait_event` call them; the host waits by `synchronize`.
Not seen: waits of `torch.Stream` and `torch.Event` themselves (`torch.accelerator`), which are C, and C++'s own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ddlprof.collect.hook_context import HookContext
from ddlprof.collect.hooks.method_wrappers import MethodWrapper, MethodWrappers, away_while_tracing
from ddlprof.collect.install import Uninstall, all_of, replace


def install(context: HookContext) -> Uninstall:
    """All waits, as far as this kind of accelerator has them."""
    accelerator, streams, wrappers = context.accelerator, context.streams, MethodWrappers()
    if accelerator is None:
        return wrappers.take
    streams.begin_anew()
    event, stream = accelerator.event_type, accelerator.stream_type
    methods: list[tuple[Any, str, Callable[..., Any]]] = []
    if event is not None:
        methods += [
            (event, "record", streams.recording(event.record)),
            (event, "wait", streams.timed(event.wait, streams.event_waits)),
            (event, "synchronize", streams.timed(event.synchronize, streams.host_waits_for_event)),
        ]
    if stream is not None:
        methods += [(stream, "synchronize", streams.timed(stream.synchronize, streams.host_waits_for_stream))]
    for owner, name, wrapper in methods:
        wrappers.add(owner, name, MethodWrapper(vars(owner)[name], wrapper))
    uninstalls = [away_while_tracing(context, wrappers, "comm")]
    if accelerator.device_wait is not None:
        owner, name = accelerator.device_wait
        timed = streams.timed(getattr(owner, name), streams.host_waits_for_device)
        uninstalls.append(replace(owner, name, timed))
    return all_of(*uninstalls)
