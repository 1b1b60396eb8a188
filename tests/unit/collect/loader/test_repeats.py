"""Workers that all go through the whole of an iterable data set."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from ddlprof.collect.loader.repeats import RepeatedBatches, batches_looked_at
from ddlprof.model.records import FirstBatches


class Stream(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return map(torch.tensor, range(100))


class Split(Stream):
    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        assert info is not None
        return islice(super().__iter__(), info.id, None, info.num_workers)


class Constant(Stream):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter([torch.zeros(1)] * 100)


class Rows(Dataset[torch.Tensor]):
    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(index)

    def __len__(self) -> int:
        return 100


def told(data: Any, workers: int = 2) -> bool | None:
    loader = DataLoader(data, 4, num_workers=workers, multiprocessing_context="fork" if workers else None)
    found = RepeatedBatches()
    found.begin(loader)
    for batch in islice(loader, 8):
        found.loaded([batch])
    return found.repeat


@pytest.mark.parametrize(
    ("data", "workers", "repeat"),
    [(Stream(), 2, True), (Split(), 2, False), (Constant(), 2, False), (Stream(), 1, None), (Rows(), 2, None)],
)
def test_whether_workers_repeat_their_batches(data: Any, workers: int, repeat: bool | None) -> None:
    assert told(data, workers) is repeat


def first_of(*batches: list[int]) -> FirstBatches | None:
    found = RepeatedBatches()
    for batch in batches:
        found.loaded([torch.tensor(batch)] if batch else [])
    return found.take_first()


def test_ranks_with_the_same_first_batches_have_the_same_number() -> None:
    assert first_of([1, 2], [3, 4]) == first_of([1, 2], [3, 4], [5, 6]) is not None
    assert first_of([1, 2], [3, 4]) != first_of([3, 4], [1, 2])


@pytest.mark.parametrize("batches", [[], [[1, 2]], [[1, 2], [1, 2]], [[], []]])
def test_batches_that_are_alike_or_not_seen_have_none(batches: list[list[int]]) -> None:
    assert first_of(*batches) is None


def test_the_number_is_given_once() -> None:
    found = RepeatedBatches()
    for value in range(2):
        found.loaded([torch.tensor(value)])
    assert found.take_first() is not None
    assert found.take_first() is None


def test_too_few_batches_tell_nothing() -> None:
    loader = DataLoader(Stream(), 4, num_workers=3)
    assert batches_looked_at(loader) == 6
    found = RepeatedBatches()
    found.begin(loader)
    for _ in range(5):
        found.loaded([torch.zeros(1)])
    assert found.repeat is None
