"""Samples of a batch whose first dimension is something else."""

from __future__ import annotations

from collections import UserDict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.data import DataLoader, IterableDataset

from ddlprof.collect.loader.batch import Drawn, ForwardSamples, drawn_by, loaded_samples
from tests.unit.collect.asked import AskedTensor, asked


class Endless(IterableDataset[int]):
    def __iter__(self) -> Any:
        while True:
            yield 1


def drawn(**options: Any) -> Drawn | None:
    return drawn_by(iter(DataLoader(range(20), **options)))  # type: ignore[arg-type]


def test_what_a_loader_draws() -> None:
    assert drawn(batch_size=8) == Drawn(8, 4)
    assert drawn(batch_size=5) == Drawn(5, 5)
    assert drawn(batch_size=8, drop_last=True) == Drawn(8, 8)
    assert drawn(batch_size=None) is None
    assert drawn(batch_sampler=[[1, 2], [3]]) is None
    assert drawn_by(iter(DataLoader(Endless(), batch_size=4))) == Drawn(4, None)
    assert drawn_by(object()) is None


@pytest.mark.parametrize(
    ("batch", "size", "expected"),
    [
        (torch.zeros(16, 3), 16, 16),
        (torch.zeros(35, 16), 35, 16),  # [time, batch]
        ((torch.zeros(7, 16), torch.zeros(16)), 7, 16),
        (UserDict(ids=torch.zeros(7, 16)), 7, 16),
        (torch.zeros(35, 4), 35, 4),  # the last one of an epoch
        (torch.zeros(32, 3), 32, 16),  # two views of each sample
        (torch.zeros(4, 3), 4, 4),  # the end of an epoch
        (torch.zeros(8, 3), 8, 8),  # the share of one rank of two
        (torch.zeros(1, 900), 1, 16),  # laid end to end
        (["a", "b"], None, 16),
    ],
)
def test_the_loader_is_believed_before_the_shape(batch: Any, size: int | None, expected: int) -> None:
    assert loaded_samples(batch, size, Drawn(16, 4)) == expected


def test_where_the_loader_knows_less_than_the_shape() -> None:
    assert loaded_samples(torch.zeros(35, 16), 35, None) == 35
    assert loaded_samples(torch.zeros(1, 900), 1, Drawn(16, None)) == 1
    assert loaded_samples(torch.zeros(32, 3), 32, Drawn(1, 1)) == 32  # the data set makes batches itself


def learned(inputs: Any, layer: nn.Module, layer_input: Any) -> int | None:
    """What is said of the second forward, after the first one has called `layer`."""
    model, samples = nn.Linear(1, 1), ForwardSamples()
    assert samples.begin(model, inputs, {}, 35) == 35
    samples.inside(nn.Linear(1, 1), (torch.zeros(1),))
    samples.inside(layer, (layer_input,))
    samples.end()
    samples.inside(nn.LSTM(1, 1), (torch.zeros(20, 35, 1),))  # outside of any forward
    return samples.begin(model, inputs, {}, 35)


def test_layers_say_which_dimension_is_the_batch() -> None:
    words = (torch.zeros(35, 20, dtype=torch.long),)
    lstm, attention = nn.LSTM(4, 4), nn.MultiheadAttention(4, 1)
    assert learned(words, lstm, torch.zeros(35, 20, 4)) == 20
    assert learned(words, attention, torch.zeros(35, 20, 4)) == 20
    assert learned(words, lstm, pack_padded_sequence(torch.zeros(35, 20, 4), torch.full((20,), 35))) == 20
    # A model that turns [batch, time] round for its own layers.
    assert learned(words, lstm, torch.zeros(20, 35, 4)) == 35
    assert learned(words, nn.LSTM(4, 4, batch_first=True), torch.zeros(35, 20, 4)) == 35
    assert learned((torch.zeros(35),), lstm, torch.zeros(35, 20, 4)) == 35


def test_whatever_the_user_calls_batch_first() -> None:
    odd: Any = SimpleNamespace(batch_first=False)
    assert learned((torch.zeros(35, 20),), odd, "text") == 35


def test_a_shape_is_not_looked_for_where_it_can_teach_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = ForwardSamples()
    monkeypatch.setattr("ddlprof.collect.loader.batch.first_shape", lambda value: pytest.fail("walked"))
    assert samples.begin(nn.Linear(1, 1), (torch.zeros(4, 2),), {}, 4, learn=False) == 4


def test_tensor_classes_and_lazy_objects_are_not_asked_for_a_shape() -> None:
    class Lazy:
        def __getattribute__(self, name: str) -> Any:
            raise AssertionError(name)

    own = torch.zeros(35, 20, 8).as_subclass(AskedTensor)
    asked.clear()
    assert loaded_samples([Lazy(), own], 35, Drawn(20, None)) == 20
    assert not asked
