"""`DataLoader`: what is read for it, in this process and in workers. For `ddlprof characterize` only."""

from __future__ import annotations

import weakref
from typing import Any

from ddlprof.collect.experiment.reads import Epoch, ReadsInit, ReadsWatch
from ddlprof.collect.install import Uninstall, all_of, replace
from ddlprof.torch_private.loader import NEXT_DATA, RESET, iterators


def install(log: str, drop: bool) -> Uninstall:
    """`log`: file for what is read; `drop`: what was read leaves the page cache when another epoch begins."""
    from torch.utils.data import dataloader as module

    _, single, several = iterators(module)
    original_next, original_reset = getattr(single, NEXT_DATA), getattr(several, RESET)
    original_init = several.__init__
    watch = ReadsWatch(log)
    epochs: weakref.WeakKeyDictionary[Any, Epoch] = weakref.WeakKeyDictionary()

    def begin_epoch() -> None:
        if drop:
            watch.drop_again()

    def _next_data(iterator: Any) -> Any:
        if iterator not in epochs:
            begin_epoch()
            epochs[iterator] = watch.begin_epoch()
        return watch.fetch(epochs[iterator], original_next, iterator)

    def __init__(iterator: Any, loader: Any) -> None:
        begin_epoch()
        user = loader.worker_init_fn
        loader.worker_init_fn = ReadsInit(user, log)
        try:
            original_init(iterator, loader)
        finally:
            loader.worker_init_fn = user

    def _reset(iterator: Any, loader: Any, first_iter: bool = False) -> None:
        if not first_iter:
            begin_epoch()
        original_reset(iterator, loader, first_iter)

    return all_of(
        replace(single, NEXT_DATA, _next_data),
        replace(several, "__init__", __init__),
        replace(several, RESET, _reset),
    )
