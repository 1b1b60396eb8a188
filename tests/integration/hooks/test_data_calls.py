"""Loops without a DataLoader of torch's: their waits are data, with the batches, numbers and errors they had."""

from __future__ import annotations

import sys
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, dataloader

from ddlprof import data_call
from ddlprof.model.records import Flag
from scripts.lab.virtual_clock import VirtualClock
from tests.integration.hooks.conftest import Profile, Profiling

BATCH, STEPS, WAIT_S = 4, 12, 0.01


def make() -> torch.Tensor:
    time.sleep(WAIT_S)
    return torch.rand(BATCH, 1)


def burn(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


class Trainer:
    def __init__(self) -> None:
        torch.manual_seed(3)
        self.net = nn.Linear(1, 1)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.01)

    def forward(self, batch: Any) -> Any:
        return self.net(batch).sum()

    def update(self, loss: Any) -> None:
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def shares(rows: list[Any]) -> dict[str, float]:
    step = sum(row.step_ns for row in rows)
    names = {"data": "data_ns", "fetch": "data_fetch_ns", "prep": "data_prep_ns"}
    return {name: sum(getattr(row, field) or 0 for row in rows) / step for name, field in names.items()}


def steady(rows: list[Any]) -> list[Any]:
    return [row for row in rows[1:] if not row.flags & (Flag.EVALUATION | Flag.TRACED)]


@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_loop_that_asks_between_forward_and_backward(
    accumulate: int, profiling: Profiling, clock: VirtualClock
) -> None:
    """As nanoGPT does, with an evaluation by the same function every few steps."""
    with profiling() as profile:
        profile.session.input.watch()

        @data_call
        def get_batch(split: str) -> torch.Tensor:
            return make()

        @torch.no_grad()
        def estimate(trainer: Trainer) -> None:
            trainer.net.eval()
            for _ in range(3):
                trainer.forward(get_batch("val"))
            trainer.net.train()

        trainer = Trainer()
        batch = get_batch("train")
        for step in range(STEPS):
            if step % 5 == 0:
                estimate(trainer)
            for _ in range(accumulate):
                loss = trainer.forward(batch)
                batch = get_batch("train")
                loss.backward()
            trainer.optimizer.step()
    rows = steady(profile.rows)
    assert len(profile.rows) == STEPS
    assert [bool(row.flags & Flag.EVALUATION) for row in profile.rows] == [step % 5 == 0 for step in range(STEPS)]
    assert {row.samples for row in rows} == {BATCH * accumulate}
    assert {row.microbatches for row in rows} == {accumulate}
    for row in rows:
        assert row.data_ns / 1e9 == pytest.approx(accumulate * WAIT_S)
        assert row.data_fetch_ns > 0.5 * row.data_ns  # what this process computes meanwhile is told by a real clock


@pytest.mark.parametrize("form", ["generator", "iterator", "method", "loader"])
def test_forms_of_data_calls(form: str, profiling: Profiling, clock: VirtualClock) -> None:
    def generate() -> Iterator[Any]:
        for _ in range(STEPS):
            yield make()

    class Batches:
        def __init__(self) -> None:
            self.source = generate()

        def __iter__(self) -> Batches:
            return self

        def __next__(self) -> Any:
            return next(self.source)

    class Samples(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            for batch in generate():
                yield from batch

    def run() -> list[Any]:
        torch.manual_seed(1)
        named: dict[str, Callable[[], Any]] = {
            "generator": data_call(generate),
            "iterator": data_call(lambda: Batches()),
            "method": lambda: iter(data_call(Batches().__next__), None),
            "loader": data_call(lambda: iter(DataLoader(Samples(), BATCH))),
        }
        trainer, batches = Trainer(), []
        for batch in named[form]():
            trainer.update(trainer.forward(batch))
            batches.append(batch.tolist())
        return [*batches, trainer.net.weight.item()]

    expected = run()
    with profiling() as profile:
        profile.session.input.watch()
        assert run() == expected
    assert [row.samples for row in profile.rows] == [BATCH] * STEPS
    assert shares(steady(profile.rows))["data"] == pytest.approx(1)  # nothing else takes time
    assert run() == expected


class Burning(Dataset[Any]):
    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> Any:
        burn(0.005)
        return torch.tensor([float(index)])


def test_batches_made_of_a_loaders_batches(profiling: Profiling) -> None:
    """What its workers did is told apart as if the loop had asked the loader itself."""
    with profiling() as profile:
        profile.session.input.watch()

        @data_call
        def rebatched() -> Iterator[Any]:
            half: list[Any] = []
            for batch in DataLoader(Burning(), BATCH // 2, num_workers=1):
                half.append(batch)
                if len(half) == 2:
                    yield torch.cat(half)
                    half.clear()

        trainer = Trainer()
        for batch in rebatched():
            trainer.update(trainer.forward(batch))
    rows = steady(profile.rows)
    assert [row.samples for row in profile.rows] == [BATCH] * STEPS
    assert sum(row.data_prep_ns for row in rows) > 0
    assert profile.records("d")[-1].cpu_ns / profile.records("d")[-1].samples >= 0.004e9


def test_compiled_functions_are_whole(profiling: Profiling) -> None:
    with profiling() as profile:
        profile.session.input.watch()
        double = data_call(lambda x: x * 2)
        compiled = torch.compile(lambda x: double(x) + 1, fullgraph=True, backend="eager")
        assert compiled(torch.ones(2)).tolist() == [3.0, 3.0]
        trainer = Trainer()
        trainer.update(trainer.forward(torch.rand(BATCH, 1)))


def test_a_function_that_is_never_called_is_said(tmp_path: Path) -> None:
    profile = Profile(tmp_path / "run", data_calls=["nowhere:get_batch"])
    profile.session.input.watch()
    profile.session.begin()
    trainer = Trainer()
    trainer.update(trainer.forward(torch.rand(BATCH, 1)))
    profile.finish()
    (note,) = profile.records("n")
    assert "--data-call nowhere:get_batch was never called" in str(note)


# -- loaders of others, by stand-ins with their names -----------------------------------------------------------------


class Rows:
    """As datasets' Dataset and IterableDataset: over samples, or over columns of some."""

    def __iter__(self) -> Iterator[Any]:
        for _ in range(STEPS * BATCH):
            time.sleep(WAIT_S / BATCH)
            yield {"x": torch.rand(1), "text": "sample"}

    def iter(self, batch_size: int) -> Iterator[Any]:
        for _ in range(STEPS):
            time.sleep(WAIT_S)
            yield {"text": ["sample"] * batch_size, "x": [[0.5]] * batch_size}

    def map(self) -> int:
        return sum(1 for _ in self)


class Advancing:
    """As DALI's and FFCV's iterators: a class with a `__next__` that does the work."""

    def __init__(self) -> None:
        self.left = STEPS

    def __iter__(self) -> Advancing:
        return self

    def __next__(self) -> Any:
        if not self.left:
            raise StopIteration
        self.left -= 1
        return [{"data": make(), "label": torch.zeros(BATCH)}]


class Piped:
    """As WebDataset's pipeline and torchdata's Loader: returns an iterator."""

    def __iter__(self) -> Iterator[Any]:
        return (make() for _ in range(STEPS))


def by_samples(rows: Any) -> Iterator[Any]:
    batch = []
    for row in rows:
        batch.append(row["x"])
        if len(batch) == BATCH:
            yield torch.stack(batch)
            batch = []


STAND_INS: dict[str, tuple[str, str, type, Callable[[Any], Any]]] = {
    "dataset by sample": ("datasets.arrow_dataset", "Dataset", Rows, lambda kind: by_samples(kind())),
    "dataset by batch": (
        "datasets.iterable_dataset", "IterableDataset", Rows,
        lambda kind: (torch.tensor(batch["x"]) for batch in kind().iter(BATCH)),
    ),
    "DALI": (
        "nvidia.dali.plugin.pytorch", "DALIGenericIterator", Advancing,
        lambda kind: (batch[0]["data"] for batch in type("DALIClassificationIterator", (kind,), {})()),
    ),
    "FFCV": (
        "ffcv.loader.epoch_iterator", "EpochIterator", Advancing, lambda kind: (batch[0]["data"] for batch in kind())
    ),
    "WebDataset": ("webdataset.pipeline", "DataPipeline", Piped, lambda kind: kind()),
    "torchdata's nodes": ("torchdata.nodes.loader", "Loader", Piped, lambda kind: kind()),
}  # fmt: skip


@pytest.mark.parametrize("name", STAND_INS)
def test_loaders_of_others(
    name: str, profiling: Profiling, monkeypatch: pytest.MonkeyPatch, clock: VirtualClock
) -> None:
    module, attribute, kind, batches = STAND_INS[name]
    kind = type(attribute, (kind,), dict(vars(kind)))
    before = dict(vars(kind))
    stand_in = types.ModuleType(module)
    setattr(stand_in, attribute, kind)
    monkeypatch.setitem(sys.modules, module, stand_in)
    with profiling() as profile:
        profile.session.input.watch()
        trainer = Trainer()
        for batch in batches(kind):
            trainer.update(trainer.forward(batch))
    assert [row.samples for row in profile.rows] == [BATCH] * STEPS
    assert shares(steady(profile.rows))["data"] == pytest.approx(1)  # nothing else takes time
    assert {key: vars(kind)[key] for key in before} == before


def test_inside_a_loader_they_are_part_of_it(profiling: Profiling, monkeypatch: pytest.MonkeyPatch) -> None:
    kind: Any = type("IterableDataset", (IterableDataset,), dict(vars(Rows)))
    stand_in = types.ModuleType("datasets.iterable_dataset")
    stand_in.IterableDataset = kind  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets.iterable_dataset", stand_in)
    with profiling() as profile:
        profile.session.input.watch()
        trainer = Trainer()
        for batch in DataLoader(kind(), BATCH):
            trainer.update(trainer.forward(batch["x"]))
    assert [row.samples for row in profile.rows] == [BATCH] * STEPS


_INIT, _RESET = (vars(dataloader._MultiProcessingDataLoaderIter)[name] for name in ("__init__", "_reset"))


class _StatefulMultiProcessingDataLoaderIter(dataloader._MultiProcessingDataLoaderIter):
    """As torchdata's: torch's own methods, copied."""

    def __init__(self, loader: Any, next_iter_state: Any) -> None:
        _INIT(self, loader)

    def _reset(self, loader: Any, first_iter: bool = False, prime_prefetch: bool = True) -> None:
        _RESET(self, loader, first_iter)


class StatefulDataLoader(DataLoader[Any]):
    def __iter__(self) -> Any:
        return _StatefulMultiProcessingDataLoaderIter(self, None)


def test_a_stateful_loader(profiling: Profiling, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its iterators are no subclasses of torch's, but for the base."""
    name = "torchdata.stateful_dataloader.stateful_dataloader"
    monkeypatch.setitem(sys.modules, name, sys.modules[__name__])
    with profiling() as profile:
        profile.session.input.watch()
        trainer = Trainer()
        for _ in range(2):
            for batch in StatefulDataLoader(Burning(), BATCH, num_workers=1):
                trainer.update(trainer.forward(batch))
    assert [row.samples for row in profile.rows] == [BATCH] * 2 * STEPS
    assert [bool(row.flags & Flag.EPOCH_START) for row in profile.rows] == ([True] + [False] * (STEPS - 1)) * 2
    assert sum(row.data_prep_ns for row in steady(profile.rows)) > 0
