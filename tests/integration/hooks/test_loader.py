"""`DataLoader` in all its forms: the same batches, random numbers and errors, and the waits measured."""

from __future__ import annotations

import multiprocessing
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, SequentialSampler, get_worker_info

from ddlprof.collect.facts.counters import ContextSampler
from ddlprof.model.manifest import Manifest
from ddlprof.model.records import Flag
from scripts.lab.virtual_clock import VirtualClock
from tests.integration.hooks.conftest import Profiling

SAMPLES, BATCH = 24, 4


class Drawing(Dataset[Any]):
    """Every sample says which random numbers its process draws."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        draws = [torch.rand(()).item(), random.random(), np.random.random()]
        return torch.tensor([index, *draws], dtype=torch.float64)


class Streaming(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        first, every = (worker.id, worker.num_workers) if worker is not None else (0, 1)
        for index in range(first, SAMPLES, every):
            yield torch.tensor([index, torch.rand(()).item()], dtype=torch.float64)


class Failing(Drawing):
    def __getitem__(self, index: int) -> Any:
        if index == 9:
            raise KeyError("sample 9 is broken")
        return super().__getitem__(index)


def burn(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


class Slow(Drawing):
    def __init__(self, seconds: float, burns: bool) -> None:
        self.seconds = seconds
        self.burns = burns

    def __getitem__(self, index: int) -> Any:
        if self.burns:
            burn(self.seconds)
        else:
            time.sleep(self.seconds)
        return super().__getitem__(index)


def seed_numpy(worker: int) -> None:
    np.random.seed(worker + 100)


def add_dimension(sample: Any) -> Any:
    return sample[None]


def seed_everything() -> None:
    torch.manual_seed(7)
    random.seed(7)
    np.random.seed(7)


def draw() -> list[Any]:
    return [torch.rand(3).tolist(), random.random(), float(np.random.random())]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that does not end by itself is ended by torch after this time, 5 s if nothing is said."""
    monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.5)


def train(
    loader: Any, epochs: int = 2, leave_after: int | None = None, net: nn.Module | None = None
) -> tuple[list[Any], list[Any]]:
    """Trains on all batches; returns them, and what else a difference could show in."""
    net = nn.Linear(1, 1) if net is None else net
    optimizer = torch.optim.SGD(net.parameters(), lr=0.001)
    batches: list[Any] = []
    traces: list[Any] = []
    for _ in range(epochs):
        for number, batch in enumerate(loader):
            optimizer.zero_grad()
            net(batch[:, :1].float()).sum().backward()
            optimizer.step()
            batches.append(batch.tolist())
            if number + 1 == leave_after:
                break
        traces.append(draw())
    return batches, [*traces, next(net.parameters()).item()]


MAKERS: dict[str, Callable[[], DataLoader[Any]]] = {
    "no workers": lambda: DataLoader(Drawing(), BATCH, shuffle=True),
    "fork": lambda: DataLoader(Drawing(), BATCH, shuffle=True, num_workers=2, multiprocessing_context="fork"),
    "init function": lambda: DataLoader(
        Drawing(), BATCH, num_workers=2, multiprocessing_context="fork", worker_init_fn=seed_numpy
    ),
    "spawn, persistent, init function": lambda: DataLoader(
        Drawing(), BATCH, True, num_workers=2, multiprocessing_context="spawn", persistent_workers=True,
        worker_init_fn=seed_numpy,
    ),
    "persistent": lambda: DataLoader(
        Drawing(), BATCH, True, num_workers=2, persistent_workers=True, multiprocessing_context="fork"
    ),
    "iterable": lambda: DataLoader(Streaming(), BATCH),
    "iterable, workers": lambda: DataLoader(Streaming(), BATCH, num_workers=2, multiprocessing_context="fork"),
    "no batches": lambda: DataLoader(Drawing(), batch_size=None, collate_fn=add_dimension),
    "out of order": lambda: DataLoader(Drawing(), BATCH, num_workers=1, prefetch_factor=4, in_order=False),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("leave_after", [None, 2])
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name.startswith("spawn") else name for name in MAKERS]
)
def test_the_same_batches_random_numbers_and_weights(name: str, leave_after: int | None, profiling: Profiling) -> None:
    if name.startswith("spawn") and leave_after is not None:
        pytest.skip("slow, and the same code as with fork")
    seed_everything()
    expected = train(MAKERS[name](), leave_after=leave_after)
    with profiling() as profile:
        seed_everything()
        assert train(MAKERS[name](), leave_after=leave_after) == expected
    flags = [row.flags & (Flag.EPOCH_START | Flag.EVALUATION) for row in profile.rows]
    per_epoch = len(flags) // 2
    assert flags == [Flag.EPOCH_START, *[0] * (per_epoch - 1)] * 2
    assert all(row.data_ns is not None for row in profile.rows)
    batches, _ = expected
    assert [row.samples for row in profile.rows] == [len(batch) for batch in batches]


def test_the_users_init_function_is_left_alone(profiling: Profiling) -> None:
    with profiling():
        loader = DataLoader(Drawing(), BATCH, num_workers=1, worker_init_fn=seed_numpy)
        iterator = iter(loader)
        assert loader.worker_init_fn is seed_numpy
        next(iterator)


def test_workers_are_looked_at_when_they_have_started(profiling: Profiling, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = threading.Event()
    monkeypatch.setattr(ContextSampler, "workers_started", lambda sampler: seen.set())
    with profiling():
        iterator = iter(DataLoader(Drawing(), BATCH, num_workers=1))
        assert seen.wait(30)
        next(iterator)


def error_of(loader: Any) -> str:
    with pytest.raises(KeyError) as error:
        for _ in loader:
            pass
    return str(error.value)


@pytest.mark.parametrize("workers", [0, 2])
def test_errors_of_the_data_set_are_the_same(workers: int, profiling: Profiling) -> None:
    """The text too: from a worker it holds the traceback."""
    expected = error_of(DataLoader(Failing(), BATCH, num_workers=workers))
    with profiling():
        assert error_of(DataLoader(Failing(), BATCH, num_workers=workers)) == expected


def failing_init(worker: int) -> None:
    raise KeyError(f"worker {worker} cannot start")


def test_errors_of_the_init_function_are_the_same(profiling: Profiling) -> None:
    def make() -> Any:
        return DataLoader(Drawing(), BATCH, num_workers=1, worker_init_fn=failing_init)

    expected = error_of(make())
    with profiling():
        assert error_of(make()) == expected


@pytest.mark.parametrize("burns", [False, True])
def test_a_sleep_is_fetch_and_a_burn_is_preparation(burns: bool, profiling: Profiling, clock: VirtualClock) -> None:
    seconds = 0.01
    with profiling() as profile:
        train(DataLoader(Slow(seconds, burns), BATCH), epochs=1)
    for row in profile.rows[1:]:
        assert row.data_ns == row.step_ns == BATCH * seconds * 1e9
        # What this process computes meanwhile, in any of its threads, is measured by a real clock.
        assert ((row.data_prep_ns if burns else row.data_fetch_ns) or 0) > 0.5 * row.data_ns
    cost = profile.records("d")[-1]
    assert (cost.blocked_ns > 0.5 * cost.samples * seconds * 1e9) is not burns


def test_waiting_for_workers_is_taken_apart(profiling: Profiling) -> None:
    with profiling() as profile:
        train(DataLoader(Slow(0.01, burns=True), BATCH, num_workers=2), epochs=1)
    for row in profile.rows:
        assert (row.data_fetch_ns or 0) + (row.data_prep_ns or 0) <= (row.data_ns or 0)
    assert sum(row.data_prep_ns or 0 for row in profile.rows) > 0


class Reading(Dataset[Any]):
    """Every sample is read from a file and takes some processor time."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        with open(self.path, "rb") as file:
            size = len(file.read())
        burn(0.005)
        time.sleep(0.005)
        return torch.tensor([float(size)])


@pytest.mark.skipif(not os.path.exists("/proc/self/io"), reason="needs Linux's /proc/self/io")
@pytest.mark.parametrize("workers", [0, 2])
def test_what_a_sample_costs_to_load(workers: int, profiling: Profiling, tmp_path: Path) -> None:
    (tmp_path / "sample").write_bytes(bytes(300_000))
    with profiling() as profile:
        training, validation = (DataLoader(Reading(str(tmp_path / "sample")), BATCH, num_workers=workers),) * 2
        net = nn.Linear(1, 1)
        train(training, epochs=2, net=net)
        with torch.no_grad():
            for batch in validation:
                net(batch)
    cost = profile.records("d")[-1]
    assert cost.samples == 2 * SAMPLES
    assert cost.cpu_ns / cost.samples / 1e9 >= 0.005
    assert 300_000 <= cost.asked_bytes / cost.samples < 330_000
    assert cost.storage_bytes is not None
    assert cost.blocked_ns > 0


class Sharded(IterableDataset[Any]):
    """Rows that are in memory; now and then the next of them are read from a file."""

    def __init__(self, path: str, rows: int, rows_of_a_file: int) -> None:
        self.path, self.rows, self.rows_of_a_file = path, rows, rows_of_a_file

    def __iter__(self) -> Iterator[Any]:
        for row in range(self.rows):
            if row % self.rows_of_a_file == 0:
                with open(self.path, "rb") as file:
                    file.read()
                time.sleep(0.02)
            yield torch.tensor([float(row)])


@pytest.mark.skipif(not os.path.exists("/proc/self/io"), reason="needs Linux's /proc/self/io")
def test_what_is_read_in_a_few_long_waits_among_many_short_ones_is_counted(
    profiling: Profiling, clock: VirtualClock, tmp_path: Path
) -> None:
    (tmp_path / "rows").write_bytes(bytes(300_000))
    batches, batches_of_a_file = 200, 40
    rows = Sharded(str(tmp_path / "rows"), BATCH * batches, BATCH * batches_of_a_file)
    with profiling() as profile:
        train(DataLoader(rows, BATCH), epochs=1)
    cost = profile.records("d")[-1]
    files = batches // batches_of_a_file
    assert 0.8 * files * 300_000 <= cost.asked_bytes * BATCH * batches / cost.samples <= 1.2 * files * 300_000
    long = [row for row in profile.rows if (row.data_ns or 0) >= 20_000_000]
    assert len(long) == files
    assert all((row.data_fetch_ns or 0) >= 0.9 * (row.data_ns or 0) for row in long)


def test_short_epochs_of_persistent_workers_lose_no_split(profiling: Profiling) -> None:
    """Workers fetch for the next epoch before the helper thread has read what they left of this one."""
    with profiling() as profile:
        train(DataLoader(Drawing(), BATCH, num_workers=2, persistent_workers=True), epochs=30)
    assert all(row.data_fetch_ns is not None for row in profile.rows)


def test_a_sampler_that_grows_between_epochs_of_persistent_workers(profiling: Profiling) -> None:
    sampler = BatchSampler(SequentialSampler(range(SAMPLES)), 2, drop_last=True)
    loader = DataLoader(Drawing(), batch_sampler=sampler, num_workers=1, persistent_workers=True)
    with profiling() as profile:
        for size in (2, 4):
            sampler.batch_size = size
            train(loader, epochs=1)
    assert Counter(row.samples for row in profile.rows) == {2: SAMPLES // 2, 4: SAMPLES // 4}


def test_no_file_of_ours_stays_behind(profiling: Profiling, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with profiling():
        train(DataLoader(Drawing(), BATCH, num_workers=2), epochs=2, leave_after=1)
        import gc

        gc.collect()
    assert not [name for name in os.listdir(tmp_path) if name.startswith("ddlprof-")]


def test_the_manifest_tells_how_the_loader_is_set_up(profiling: Profiling) -> None:
    with profiling() as profile:
        train(DataLoader(Drawing(), BATCH, num_workers=1, persistent_workers=True, prefetch_factor=3), epochs=1)
    training = Manifest.read(profile.directory).training
    assert (training.pin_memory, training.persistent_workers, training.prefetch_factor) == (False, True, 3)
    assert training.worker_start in multiprocessing.get_all_start_methods()


@pytest.mark.parametrize(("evaluates", "workers"), [(True, 1), (False, 1)])
def test_the_loader_of_an_evaluation_before_the_training_is_none_of_it(
    evaluates: bool, workers: int, profiling: Profiling
) -> None:
    first = DataLoader(Drawing(), BATCH)
    with profiling() as profile:
        net = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.001)
        with torch.no_grad():
            for batch in first if evaluates else ():
                net(batch[:, :1].float())
        for loader in (DataLoader(Drawing(), BATCH, num_workers=workers), first):
            for batch in loader:
                net(batch[:, :1].float()).sum().backward()
                optimizer.step()
    facts = Manifest.read(profile.directory).training
    assert (facts.loader_workers, facts.dataset_samples) == (workers, SAMPLES)


def test_two_loaders_at_once(profiling: Profiling) -> None:
    with profiling() as profile:
        loaders = [DataLoader(Drawing(), BATCH, num_workers=n) for n in (0, 1)]
        net = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.001)
        for first, second in zip(*loaders, strict=True):
            net(torch.cat((first, second))[:, :1].float()).sum().backward()
            optimizer.step()
    assert [row.samples for row in profile.rows] == [2 * BATCH] * (SAMPLES // BATCH)
    assert not any(row.flags & Flag.EVALUATION for row in profile.rows)


def test_validation_with_a_loader_of_its_own(profiling: Profiling) -> None:
    with profiling() as profile:
        net = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.001)
        training, validation = (DataLoader(Drawing(), BATCH) for _ in range(2))
        for _ in range(2):
            for batch in training:
                net(batch[:, :1].float()).sum().backward()
                optimizer.step()
            with torch.no_grad():
                for batch in validation:
                    net(batch[:, :1].float())
    steps = SAMPLES // BATCH
    assert [bool(row.flags & Flag.EVALUATION) for row in profile.rows] == [index == steps for index in range(2 * steps)]
    assert [row.samples for row in profile.rows] == [BATCH] * 2 * steps


class Odd(DataLoader[Any]):
    """Has no hash, and an iterator of which nothing is known."""

    def __eq__(self, other: object) -> bool:
        return self is other

    def _get_iterator(self) -> Any:
        return zip(super()._get_iterator())


def test_an_odd_subclass(profiling: Profiling) -> None:
    with profiling() as profile:
        train((batch for (batch,) in Odd(Drawing(), BATCH)), epochs=1)
    assert [row.samples for row in profile.rows] == [BATCH] * (SAMPLES // BATCH)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_iterator_for_each_step(workers: int, profiling: Profiling) -> None:
    loader = DataLoader(Drawing(), BATCH, num_workers=workers)
    with profiling() as profile:
        train((next(iter(loader)) for _ in range(3)), epochs=1)
    assert [(row.samples, row.flags & Flag.EPOCH_START) for row in profile.rows] == [(BATCH, Flag.EPOCH_START)] * 3


def test_iterators_begun_before_the_profile(profiling: Profiling) -> None:
    loader = DataLoader(Drawing(), BATCH, num_workers=1)
    iterator = iter(loader)
    next(iterator)
    with profiling() as profile:
        batches, _ = train(iterator, epochs=1)
        assert len(batches) == SAMPLES // BATCH - 1
    assert all(row.data_ns is not None for row in profile.rows)
