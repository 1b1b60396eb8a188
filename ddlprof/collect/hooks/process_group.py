"""Tells the session when there is a default process group, so that rank and world size are known.

`init_device_mesh`, and code that imported `init_process_group` before us, call torch's own function. So we wrap a
private function that all of them call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ddlprof.collect.install import Uninstall, all_of, replace
from ddlprof.torch_private.collectives import SET_DEFAULT_GROUP


def follow(on_ready: Callable[[], None]) -> Uninstall:
    """Calls `on_ready()` whenever the default process group has been set."""
    import torch.distributed as dist

    if not dist.is_available():
        return lambda: None
    c10d = dist.distributed_c10d
    if hasattr(c10d, SET_DEFAULT_GROUP):
        return replace(c10d, SET_DEFAULT_GROUP, _followed(getattr(c10d, SET_DEFAULT_GROUP), dist, on_ready))
    wrapper = _followed(dist.init_process_group, dist, on_ready)  # another version of torch
    return all_of(replace(dist, "init_process_group", wrapper), replace(c10d, "init_process_group", wrapper))


def _followed(original: Callable[..., Any], dist: Any, on_ready: Callable[[], None]) -> Callable[..., Any]:
    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if dist.is_initialized():  # not where it was destroyed
            on_ready()
        return result

    return wrapper
