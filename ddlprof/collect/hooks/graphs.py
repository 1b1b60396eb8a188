"""CUDA graph captures: while one is under way, no thread of ours may ask the device anything."""

from __future__ import annotations

import functools
from threading import Lock
from typing import Any

from ddlprof.collect.hooks import Uninstall, all_of, replace


def install(torch: Any, device_free: Lock) -> Uninstall:
    """Holds `device_free` from the begin of a capture to its end, once for captures that overlap or never end."""
    graph = torch.cuda.CUDAGraph
    begin, end = graph.capture_begin, graph.capture_end
    under_way = 0

    def hold() -> None:
        nonlocal under_way
        if not under_way:
            device_free.acquire()
        under_way += 1

    def free() -> None:
        nonlocal under_way
        if under_way == 1:
            device_free.release()
        under_way = max(0, under_way - 1)

    @functools.wraps(begin)
    def capture_begin(self: Any, *args: Any, **kwargs: Any) -> Any:
        hold()
        try:
            return begin(self, *args, **kwargs)
        except BaseException:
            free()
            raise

    @functools.wraps(end)
    def capture_end(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return end(self, *args, **kwargs)
        finally:
            free()

    return all_of(replace(graph, "capture_begin", capture_begin), replace(graph, "capture_end", capture_end))
