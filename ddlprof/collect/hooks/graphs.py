"""CUDA graph captures: while one is under way, no thread of ours may ask the device anything."""

from __future__ import annotations

from threading import Lock
from typing import Any

from ddlprof.collect.hooks import Uninstall, all_of, replace


def install(torch: Any, device_free: Lock) -> Uninstall:
    """Holds `device_free` from the begin of a capture to its end."""
    graph = torch.cuda.CUDAGraph
    begin, end = graph.capture_begin, graph.capture_end

    def capture_begin(self: Any, *args: Any, **kwargs: Any) -> Any:
        device_free.acquire()
        try:
            return begin(self, *args, **kwargs)
        except BaseException:
            device_free.release()
            raise

    def capture_end(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return end(self, *args, **kwargs)
        finally:
            if device_free.locked():
                device_free.release()

    return all_of(replace(graph, "capture_begin", capture_begin), replace(graph, "capture_end", capture_end))
