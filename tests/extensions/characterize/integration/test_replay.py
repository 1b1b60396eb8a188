"""Replayed input: as many batches as ever, none of them fetched, each as good as new."""

from __future__ import annotations

from collections import UserDict, namedtuple
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from ddlprof.collect.recorder import Recorder
from ddlprof.extensions.characterize.collect import setup

Pair = namedtuple("Pair", "x y")


class Counted(Dataset[Any]):
    def __init__(self, length: int) -> None:
        self.length = length
        self.fetched = 0

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        self.fetched += 1
        return {"x": torch.full((2,), float(index)), "name": str(index)}


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(6))


class SizedStream(Stream):
    def __len__(self) -> int:
        return 6


@pytest.fixture(autouse=True)
def replayed() -> Iterator[None]:
    original = DataLoader._get_iterator
    uninstall = setup.replay()
    yield
    uninstall()
    assert DataLoader._get_iterator is original


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_epochs_keep_their_length(workers: int, persistent: bool) -> None:
    loader = DataLoader(Counted(10), batch_size=3, num_workers=workers, persistent_workers=persistent)
    for _ in range(3):
        batches = list(loader)
        assert len(batches) == len(loader) == 4
        assert all(batch["x"][:, 0].tolist() == [0.0, 1.0, 2.0] for batch in batches)


def test_only_the_first_batch_is_fetched() -> None:
    data = Counted(100)
    loader = DataLoader(data, batch_size=4)
    for _ in range(3):
        list(loader)
    assert data.fetched == 4


def test_an_empty_loader_stays_empty() -> None:
    assert list(DataLoader(Counted(2), batch_size=4, drop_last=True)) == []


def test_iterable_data_sets() -> None:
    assert [batch.tolist() for batch in DataLoader(SizedStream(), batch_size=4)] == [[0, 1, 2, 3]] * 2
    with torch.no_grad():  # an evaluation of unknown length is left alone: it would never end
        assert [batch.tolist() for batch in DataLoader(Stream(), batch_size=4)] == [[0, 1, 2, 3], [4, 5]]
    endless = iter(DataLoader(Stream(), batch_size=4))
    assert [next(endless).tolist() for _ in range(5)] == [[0, 1, 2, 3]] * 5


@pytest.mark.parametrize(
    "batch",
    [
        {"x": torch.ones(2), "names": ["a"]},
        UserDict(x=torch.ones(2), names=["a"]),
    ],
    ids=["dict", "UserDict"],
)
def test_a_script_may_change_its_batch(batch: Any) -> None:
    replayed = setup.ReplayedBatch(batch)
    for _ in range(3):
        mine = replayed.hand_out()
        assert type(mine) is type(batch)
        assert mine["names"] == ["a"]
        assert mine["x"].tolist() == [1.0, 1.0]
        assert not mine["x"].requires_grad
        mine["names"].append("b")
        mine["x"].requires_grad_()
        mine["x"].detach().mul_(3)
        del mine["x"]


def test_tuples_and_other_objects() -> None:
    other = object()
    replayed = setup.ReplayedBatch(Pair((torch.zeros(1), other), [torch.zeros(1)]))
    batch = replayed.hand_out()
    assert isinstance(batch, Pair)
    assert batch.x[1] is other
    batch.y[0].add_(1)
    assert replayed.hand_out().y[0].item() == 0


def test_memory_is_shared_until_it_is_changed() -> None:
    tensor = torch.zeros(4)
    replayed = setup.ReplayedBatch([tensor])
    assert replayed.hand_out()[0].data_ptr() == replayed.hand_out()[0].data_ptr() == tensor.data_ptr()


def test_the_script_ends_after_some_steps() -> None:
    from ddlprof.collect.hooks.table import hook_context

    class Nested(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    recorder = Recorder()
    model = torch.nn.Linear(1, 1)
    often, seldom = Nested(model.parameters(), lr=0.1), torch.optim.SGD(model.parameters(), lr=0.1)
    steps = 0

    def train() -> None:
        nonlocal steps
        for steps in range(1, 100):
            if steps % 2:
                seldom.step()
            often.step()

    uninstalls = [hook_context(torch, recorder).steps.install(), setup.end_after(recorder, 5)]
    try:
        with pytest.raises(SystemExit) as ended:
            train()
    finally:
        for uninstall in reversed(uninstalls):
            uninstall()
    assert (steps, ended.value.code) == (5, 0)
