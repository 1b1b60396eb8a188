"""All ways in which a session sees its training thread wait for data: torch's DataLoader, data calls, and loaders of
other libraries, which are seen once the script imports them.

The table has wrappers around a DataLoader only if they make other batches of its batches or iterate it in another
thread; for all others, the waits of the DataLoader itself are enough.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from ddlprof.collect.install import Uninstall
from ddlprof.collect.loader import dataloader
from ddlprof.collect.loader.batch import batch_size
from ddlprof.collect.loader.data_calls import DataCalls
from ddlprof.collect.loader.dataloader import Loaders, install_stateful
from ddlprof.collect.loader.waits import Waits
from ddlprof.collect.process.on_import import after_imports
from ddlprof.collect.recorder import Recorder


def one(_: Any) -> int:
    """The batch size of iterators over samples."""
    return 1


def rows(batch: Any) -> int | None:
    """The batch size where batches are columns by name."""
    return len(next(iter(batch.values()))) if isinstance(batch, dict) else batch_size(batch)


def batch_or_sample(item: Any) -> int | None:
    """The batch size in pipelines that give batches or samples: a sample of WebDataset is a dict with its key."""
    return 1 if isinstance(item, dict) and isinstance(item.get("__key__"), str) else batch_size(item)


class Known(NamedTuple):
    """A method that returns a batch or an iterator over them, under the names it has had."""

    module: str
    methods: tuple[str, ...]
    samples: Callable[[Any], int | None] = batch_size


TABLE = (
    Known("datasets.arrow_dataset", ("Dataset.__iter__",), one),
    Known("datasets.arrow_dataset", ("Dataset.iter",), rows),
    Known("datasets.iterable_dataset", ("IterableDataset.__iter__",), one),
    Known("datasets.iterable_dataset", ("IterableDataset.iter",), rows),
    Known("ffcv.loader.epoch_iterator", ("EpochIterator.__next__",)),
    Known("grain._src.python.data_loader", ("DataLoader.__iter__",)),
    Known("grain._src.python.dataset.dataset", ("MapDataset.__iter__",)),
    Known("monai.data.thread_buffer", ("ThreadDataLoader.__iter__",)),
    Known("nvidia.dali.plugin.pytorch", ("DALIGenericIterator.__next__", "DALIRaggedIterator.__next__")),
    Known("prefetch_generator", ("BackgroundGenerator.__next__", "BackgroundGenerator.next")),
    Known("tensorflow.python.data.ops.dataset_ops", ("NumpyIterator.__next__", "_NumpyIterator.__next__")),
    Known("tensorflow.python.data.ops.iterator_ops", ("OwnedIterator.__next__",)),
    Known("torchdata.dataloader2.dataloader2", ("DataLoader2Iterator.__next__",)),
    Known("torchdata.nodes.loader", ("Loader.__iter__",)),
    Known("webdataset.pipeline", ("DataPipeline.__iter__",), batch_or_sample),
)

STATEFUL = "torchdata.stateful_dataloader.stateful_dataloader"


def _watch_libraries(calls: DataCalls, loaders: Loaders) -> Uninstall:
    """Patches the classes of the table, those imported already and those imported later.

    To be called before the script runs, because a module in the middle of its import has no classes yet.
    """
    patches: list[Uninstall] = []

    def unseen(name: str, error: Exception) -> None:
        loaders.recorder.note("data", f"waits for {name} are not seen: {type(error).__name__}: {error}")

    def imported(known: Known) -> None:
        library = known.module.partition(".")[0]  # `Dataset.map` iterates too
        failed: list[Exception] = []
        for method in known.methods:
            module, name = sys.modules[known.module], f"{known.module}:{method}"
            try:
                patches.append(calls.patch(module, method, name, samples=known.samples, library=library))
            except Exception as error:  # another version of it, which has some of them
                failed.append(error)
        if len(failed) == len(known.methods):
            unseen(known.module, failed[0])

    def imported_stateful() -> None:
        try:
            patches.append(install_stateful(loaders, sys.modules[STATEFUL]))
        except Exception as error:
            unseen(STATEFUL, error)

    callbacks: dict[str, list[Callable[[], None]]] = {STATEFUL: [imported_stateful]}
    for known in TABLE:
        callbacks.setdefault(known.module, []).append(partial(imported, known))
    cancel = after_imports(callbacks)

    def uninstall() -> None:
        cancel()
        while patches:
            patches.pop()()

    return uninstall


class Input:
    """All waits for data of a session. `data_calls`: those that the user named; `learn(loader)` is called for each
    DataLoader that is iterated, `look(batch)` with each of its batches in the first steps.
    """

    def __init__(
        self,
        recorder: Recorder,
        learn: Callable[[Any], None],
        data_calls: Sequence[str],
        look: Callable[[Any], None] = lambda batch: None,
    ) -> None:
        self._waits = Waits(recorder)
        self._loaders = dataloader.Loaders(self._waits, learn, look)
        self._calls = DataCalls(self._waits, data_calls)
        self._unwatch: Uninstall = lambda: None

    def watch(self) -> None:
        """Called before the script runs: has data calls and other libraries' loaders hooked when they are imported."""
        self._calls.watch()
        self._unwatch = _watch_libraries(self._calls, self._loaders)

    def install(self, torch: Any) -> Uninstall:
        """Hooks the DataLoader; called once torch is imported."""
        self._waits.begin(torch)
        return dataloader.install(self._loaders)

    def close(self) -> list[str]:
        """Called after the script has run: removes the hooks. Returns one line for each data call never called."""
        self._unwatch()
        self._calls.close()
        return self._calls.complaints()
