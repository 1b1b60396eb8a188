"""`init_process_group`: tells the session that rank and world are known, once it has returned."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ddlprof.collect.hooks import Uninstall, all_of, replace


def install(on_ready: Callable[[], None]) -> Uninstall:
    """`on_ready()` is called after the default group was made."""
    import torch.distributed as dist

    if not dist.is_available():
        return lambda: None
    original = dist.init_process_group

    @functools.wraps(original)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        on_ready()
        return result

    return all_of(
        replace(dist, "init_process_group", init_process_group),
        replace(dist.distributed_c10d, "init_process_group", init_process_group),
    )
