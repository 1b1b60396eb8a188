"""The iterators of DataLoader, and its workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ddlprof.torch_private.names import PrivateName, reader

_MODULE = "torch.utils.data.dataloader"
_WAITS = "waits for data are not measured"
_SPLIT = "waits for data are not split into fetch and prep where the loader has workers"
_SAMPLES = "samples of a batch are told by its shape alone"
_CHARACTERIZE = "ddlprof characterize cannot replace or watch what the loader reads"


def _iterator(torch: Any) -> Any:
    return iter(torch.utils.data.DataLoader([0]))


WAITING = ("_try_get_data", "_get_data")
"""Functions of an iterator that wait for its workers."""

NAMES = (
    *(
        PrivateName(
            f"{_MODULE}:_MultiProcessingDataLoaderIter.{name}",
            "tells waits for workers from work of the loader",
            "a wait for workers may be taken for a line at which batches are made",
        )
        for name in WAITING
    ),
    PrivateName(f"{_MODULE}:_BaseDataLoaderIter", "times the wait for the next batch", _WAITS),
    PrivateName(f"{_MODULE}:_MultiProcessingDataLoaderIter", "measures fetches in the loader's workers", _SPLIT),
    PrivateName(
        f"{_MODULE}:_MultiProcessingDataLoaderIter._reset", "sees workers that are kept begin an epoch", _SPLIT
    ),
    PrivateName(f"{_MODULE}:_MultiProcessingDataLoaderIter()._task_info", "tells which worker made a batch", _SPLIT),
    PrivateName(
        f"{_MODULE}:_BaseDataLoaderIter()._num_workers",
        "tells whether an iterator has workers",
        _SPLIT,
        example=_iterator,
    ),
    PrivateName("torch.utils.data:_DatasetKind.create_fetcher", "measures the fetches of a worker", _SPLIT),
    PrivateName(
        "torch.utils.data._utils.worker:ExceptionWrapper",
        "keeps ddlprof's frames out of the traceback of an error in a worker",
        "tracebacks of errors in loader workers show a frame of ddlprof's",
    ),
    PrivateName(
        f"{_MODULE}:_BaseDataLoaderIter()._index_sampler",
        "tells how many samples are drawn for a batch",
        _SAMPLES,
        example=_iterator,
    ),
    PrivateName(
        f"{_MODULE}:_BaseDataLoaderIter()._auto_collation",
        "tells whether the loader makes the batches",
        _SAMPLES,
        example=_iterator,
    ),
    PrivateName(f"{_MODULE}:DataLoader._get_iterator", "replays a batch (characterize)", _CHARACTERIZE),
    PrivateName(f"{_MODULE}:_SingleProcessDataLoaderIter._next_data", "watches reads (characterize)", _CHARACTERIZE),
    PrivateName(f"{_MODULE}:_BaseDataLoaderIter()._sampler_iter", "replays a batch (characterize)", _CHARACTERIZE),
    PrivateName(f"{_MODULE}:_BaseDataLoaderIter()._num_yielded", "replays a batch (characterize)", _CHARACTERIZE),
    PrivateName(
        "torchdata.stateful_dataloader.stateful_dataloader:_StatefulMultiProcessingDataLoaderIter",
        "measures fetches in the workers of a StatefulDataLoader",
        "waits for a StatefulDataLoader with workers are not split into fetch and prep",
        needs="torchdata",
    ),
)

CREATE_FETCHER, TAKE_ERROR = "create_fetcher", "ExceptionWrapper"
"""The names in what `fetchers` and `worker_module` return."""
RESET, NEXT_DATA, GET_ITERATOR = "_reset", "_next_data", "_get_iterator"
"""Methods: of iterators with workers, of all iterators, of the loader."""

number_of_workers = reader("_num_workers")
open_tasks = reader("_task_info")
"""Reads the open tasks of an iterator with workers: tuples that begin with the worker, by number of the batch."""


def iterators(module: Any) -> tuple[Any, Any, Any]:
    """Classes of `torch.utils.data.dataloader`: the base of all iterators, that without workers, that with workers."""
    return module._BaseDataLoaderIter, module._SingleProcessDataLoaderIter, module._MultiProcessingDataLoaderIter


def stateful_iterator(module: Any) -> Any:
    """The class of torchdata's iterators with workers."""
    return module._StatefulMultiProcessingDataLoaderIter


def batch_sampler(iterator: Any) -> Any:
    """The sampler that gives the samples of each batch; None if the loader does not collate batches."""
    return iterator._index_sampler if iterator._auto_collation else None


def fetchers() -> Any:
    """The class whose function `CREATE_FETCHER` is called in each worker."""
    from torch.utils.data import _DatasetKind

    return _DatasetKind


def worker_module() -> Any:
    """The module whose `TAKE_ERROR` takes the errors of a worker."""
    from torch.utils.data._utils import worker

    return worker


def replaying_iterator(module: Any) -> Any:
    """A class of loader iterators that use the sampler as usual but not the data set: they return the result of
    `next_batch`, their second argument, called with the number of batches returned before."""
    base: Any = iterators(module)[0]

    class Replaying(base):  # type: ignore[misc]
        def __init__(self, loader: Any, next_batch: Callable[[int], Any]) -> None:
            super().__init__(loader)
            self._num_workers = 0
            self.next_batch = next_batch

        def _next_data(self) -> Any:
            next(self._sampler_iter)
            return self.next_batch(self._num_yielded)

    return Replaying
