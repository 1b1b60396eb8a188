"""`DataLoader`: what is read for it, in this process and in workers. For `ddlprof characterize` only."""

from __future__ import annotations

import weakref
from typing import Any

from ddlprof.collect.hooks import Uninstall, all_of, replace
from ddlprof.collect.reads import Epoch, ReadsInit, ReadsWatch


def install(log: str, drop: bool) -> Uninstall:
    """`log`: file for what is read; `drop`: files leave the page cache when they are first seen in an epoch."""
    from torch.utils.data import dataloader as module

    single, several = module._SingleProcessDataLoaderIter, module._MultiProcessingDataLoaderIter
    original_next, original_init, original_reset = single._next_data, several.__init__, several._reset
    watch = ReadsWatch(log, drop)
    epochs: weakref.WeakKeyDictionary[Any, Epoch] = weakref.WeakKeyDictionary()

    def _next_data(iterator: Any) -> Any:
        if iterator not in epochs:
            epochs[iterator] = Epoch(watch)
            epochs[iterator].look_around()
        return watch.fetch(epochs[iterator], original_next, iterator)

    def __init__(iterator: Any, loader: Any) -> None:
        user = loader.worker_init_fn
        loader.worker_init_fn = ReadsInit(user, log, drop)
        Epoch(watch).look_around()  # at what the workers inherit
        try:
            original_init(iterator, loader)
        finally:
            loader.worker_init_fn = user

    def _reset(iterator: Any, loader: Any, first_iter: bool = False) -> None:
        if not first_iter:
            Epoch(watch).look_around()
        original_reset(iterator, loader, first_iter)

    return all_of(
        replace(single, "_next_data", _next_data),
        replace(several, "__init__", __init__),
        replace(several, "_reset", _reset),
    )
