"""Which epochs had the order of samples of the one before."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from ddlprof.collect.loader.orders import Orders

DATA = TensorDataset(torch.arange(8.0))


def loader(shuffle: bool = True) -> DataLoader[tuple[torch.Tensor, ...]]:
    return DataLoader(DATA, sampler=DistributedSampler(DATA, num_replicas=2, rank=0, shuffle=shuffle))


@pytest.mark.parametrize(("numbers", "repeated"), [([0, 0, 0], 2), ([0, 1, 2], 0), ([0, 0, 1, 1], 2)])
def test_an_epoch_with_the_number_of_the_last_has_its_order(numbers: list[int], repeated: int) -> None:
    orders, train = Orders(), loader()
    for number in numbers:
        train.sampler.set_epoch(number)  # type: ignore[attr-defined]
        orders.iterated(train)
    assert orders.repeated == repeated


def test_only_the_training_loader_counts() -> None:
    orders, train, evaluates = Orders(), loader(), loader()
    for epoch in range(3):
        train.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
        orders.iterated(train)
        orders.iterated(evaluates)
    assert orders.repeated == 0


@pytest.mark.parametrize("other", [loader(shuffle=False), DataLoader(DATA, shuffle=True)])
def test_other_samplers_say_nothing(other: DataLoader[tuple[torch.Tensor, ...]]) -> None:
    orders = Orders()
    orders.iterated(other)
    orders.iterated(other)
    assert orders.repeated is None
