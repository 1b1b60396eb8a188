"""The hooks of a run of `ddlprof characterize`: replayed or watched input, and an end after some steps.

Nothing of this is installed in other runs. With replayed input an epoch keeps its number of batches: the sampler is
still asked for indices, but nothing is fetched.
"""

from __future__ import annotations

import copy
import os
import weakref
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader, IterableDataset, dataloader

from ddlprof.collect.compiler import leave_to_python
from ddlprof.collect.hooks.context import HookContext
from ddlprof.collect.install import Uninstall, all_of, removal, replace
from ddlprof.collect.progress import WARMUP_STEPS
from ddlprof.collect.recorder import Recorder
from ddlprof.extensions.characterize.collect.reads import Epoch, ReadsInit, ReadsWatch
from ddlprof.extensions.characterize.experiment import Experiment
from ddlprof.extensions.characterize.model import reads_name
from ddlprof.torch_private.engine import version_of
from ddlprof.torch_private.loader import GET_ITERATOR, NEXT_DATA, RESET, iterators, replaying_iterator


def install(context: HookContext, settings: dict[str, Any], directory: Path, rank: int) -> Uninstall:
    """Makes the script end after the steps of the experiment with these settings.

    Must be installed after the hooks of the loader and the optimizer. What the loaders read is listed in the directory.
    """
    experiment = Experiment(**settings)
    leave_to_python(context.torch)
    context.torch.manual_seed(0)  # an unseeded script must read the same files in the same order each time
    limited = end_after(
        context.recorder, WARMUP_STEPS + experiment.steps
    )  # first: if the rest fails, the run still ends early
    if experiment.replayed:
        return all_of(limited, replay())
    if not os.path.exists("/proc/self/io"):
        return limited
    return all_of(limited, watch_reads(str(directory / reads_name(rank)), experiment.drop_cache))


def end_after(recorder: Recorder, steps: int) -> Uninstall:
    """Ends the script by SystemExit after the update with which the first optimizer has made `steps` updates.

    All ranks count the same updates, so they end at the same one. Must be installed after the optimizer's hook.
    """
    updates: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
    boundaries = 0

    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        nonlocal boundaries
        # A nested step (a subclass that calls its base class) ends before the outer one and does not count.
        if torch.compiler.is_compiling() or recorder.boundaries == boundaries:
            return
        boundaries = recorder.boundaries
        updates[optimizer] = updates.get(optimizer, 0) + 1
        if updates[optimizer] >= steps:
            raise SystemExit(0)

    return removal(register_optimizer_step_post_hook(after))


def watch_reads(log: str, drop: bool) -> Uninstall:
    """Watches what DataLoaders read, in this process and in workers.

    `log`: the file that lists the reads. `drop`: whether files are dropped from the page cache when another epoch
    begins.
    """
    _, single, several = iterators(dataloader)
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


class ReplayedBatch:
    """A batch that can be handed out any number of times.

    Each time it is put into new containers and tensor objects over the same memory, which takes microseconds. If the
    script has changed a tensor in place, the tensor is restored from a copy.
    """

    def __init__(self, batch: Any) -> None:
        self._batch = batch
        self._tensors = [(tensor, tensor.clone()) for tensor in _tensors(batch) if not tensor.is_inference()]
        self._versions = self._current_versions()

    def hand_out(self) -> Any:
        """The batch as it was, in new containers."""
        if self._versions != self._current_versions():
            with torch.no_grad():
                for tensor, original in self._tensors:
                    tensor.copy_(original)
            self._versions = self._current_versions()
        return _fresh(self._batch)

    def _current_versions(self) -> list[int]:
        """Counters of in-place changes. A detached tensor shares its counter with the original."""
        return [version_of(tensor) for tensor, _ in self._tensors]


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple, MutableMapping)):
        for item in value.values() if isinstance(value, MutableMapping) else value:
            yield from _tensors(item)


def _fresh(value: Any) -> Any:
    """The value in new containers and tensor objects. Other objects are returned as they are."""
    if isinstance(value, torch.Tensor):
        return value.detach()
    if isinstance(value, MutableMapping):
        mapping = copy.copy(value)
        for key in mapping:
            mapping[key] = _fresh(mapping[key])
        return mapping
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(_fresh, value))
    if isinstance(value, (list, tuple)):
        return type(value)(map(_fresh, value))
    return value


class _Handing:
    """Hands out the batch as often as the loader's own iterator would; without end if that length is not known."""

    def __init__(self, loader: DataLoader[Any], batch: ReplayedBatch) -> None:
        self._batch = batch
        self._most = _length(loader) if isinstance(loader.dataset, IterableDataset) else None

    def __call__(self, handed_out: int) -> Any:
        if handed_out == self._most:
            raise StopIteration  # the sampler ends the epoch, except for an iterable data set
        return self._batch.hand_out()


def _length(loader: DataLoader[Any]) -> int | None:
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return None


def replay() -> Uninstall:
    """Makes all loaders hand out their first batch again and again.

    That includes loaders for evaluation, so that the script does the same work in every experiment.
    """
    original = getattr(DataLoader, GET_ITERATOR)
    replaying = replaying_iterator(dataloader)
    batches: weakref.WeakKeyDictionary[DataLoader[Any], ReplayedBatch] = weakref.WeakKeyDictionary()

    def _get_iterator(loader: DataLoader[Any]) -> Any:
        if not torch.is_grad_enabled() and _length(loader) is None:
            return original(loader)  # an evaluation would never end
        if loader not in batches:
            try:
                batches[loader] = ReplayedBatch(next(original(loader)))
            except StopIteration:
                return original(loader)
        return replaying(loader, _Handing(loader, batches[loader]))

    return replace(DataLoader, GET_ITERATOR, _get_iterator)
