"""Replayed input: loaders hand out their first batch again and again. For `ddlprof characterize` only.

An epoch keeps its number of batches: the sampler is asked for indices as ever, but nothing is fetched.
Each time the batch is put into new containers and tensor objects over the same memory, which costs microseconds; a
script that changes a tensor in place gets it restored (that is copied, and takes its time).
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Iterator, MutableMapping
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, dataloader

from ddlprof.collect.install import Uninstall, replace
from ddlprof.torch_private.engine import version_of
from ddlprof.torch_private.loader import GET_ITERATOR, replaying_iterator


class ReplayedBatch:
    """A batch that can be handed out any number of times."""

    def __init__(self, batch: Any) -> None:
        self._batch = batch
        self._tensors = [(tensor, tensor.clone()) for tensor in _tensors(batch) if not tensor.is_inference()]
        self._versions = self._current_versions()

    def hand_out(self) -> Any:
        """The batch as it was, in containers of its own."""
        if self._versions != self._current_versions():
            with torch.no_grad():
                for tensor, original in self._tensors:
                    tensor.copy_(original)
            self._versions = self._current_versions()
        return _fresh(self._batch)

    def _current_versions(self) -> list[int]:
        """They count the changes in place; a detached tensor shares its count with the original."""
        return [version_of(tensor) for tensor, _ in self._tensors]


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple, MutableMapping)):
        for item in value.values() if isinstance(value, MutableMapping) else value:
            yield from _tensors(item)


def _fresh(value: Any) -> Any:
    """New containers and tensor objects; anything else is the same object each time."""
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
    """Hands out the batch as often as the loader's own iterator would; without end where nobody knows its length."""

    def __init__(self, loader: DataLoader[Any], batch: ReplayedBatch) -> None:
        self._batch = batch
        self._most = _length(loader) if isinstance(loader.dataset, IterableDataset) else None

    def __call__(self, handed_out: int) -> Any:
        if handed_out == self._most:
            raise StopIteration  # the sampler ends the epoch, but not that of an iterable data set
        return self._batch.hand_out()


def _length(loader: DataLoader[Any]) -> int | None:
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return None


def install() -> Uninstall:
    """All loaders, those for evaluation too: the script does the same work in every experiment."""
    original = getattr(DataLoader, GET_ITERATOR)
    replaying = replaying_iterator(dataloader)
    batches: weakref.WeakKeyDictionary[DataLoader[Any], ReplayedBatch] = weakref.WeakKeyDictionary()

    def _get_iterator(loader: DataLoader[Any]) -> Any:
        if not torch.is_grad_enabled() and _length(loader) is None:
            return original(loader)  # an evaluation that would never end
        if loader not in batches:
            try:
                batches[loader] = ReplayedBatch(next(original(loader)))
            except StopIteration:
                return original(loader)
        return replaying(loader, _Handing(loader, batches[loader]))

    return replace(DataLoader, GET_ITERATOR, _get_iterator)
