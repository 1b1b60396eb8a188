"""How many samples are in what scripts call a batch, and that looking does nothing to it."""

from __future__ import annotations

from collections import OrderedDict, UserDict, namedtuple
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from ddlprof.collect.loader import batch as module
from ddlprof.collect.loader.batch import (
    ForwardSamples,
    SamplesPerBatch,
    arguments_size,
    batch_size,
    drawn_by,
    loaded_samples,
)
from tests.unit.collect.asked import AskedTensor, asked

Pair = namedtuple("Pair", "x y")
B = 6
X, Y = torch.zeros(B, 3, 8, 8), torch.zeros(B)
IMAGE, LABEL = torch.zeros(3, 8, 8), torch.tensor(1)


def target(boxes: int) -> dict[str, Any]:
    return {"boxes": torch.zeros(boxes, 4), "labels": torch.zeros(boxes)}


@dataclass
class Fields:
    name: str
    x: torch.Tensor


class Detr:
    def __init__(self) -> None:
        self.device = "cpu"
        self.tensors, self.mask = X, torch.zeros(B, 8, 8)


class Graphs:
    """As torch_geometric keeps a batch."""

    def __init__(self) -> None:
        self._store = Detr()
        self._store._num_graphs = B  # type: ignore[attr-defined]


class Lazy:
    """Everything it has makes it load."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} was looked at")

    @property
    def shape(self) -> Any:
        raise AssertionError("shape was looked at")

    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("it was walked")

    def keys(self) -> Any:
        raise AssertionError("its keys were asked for")

    values = __len__ = keys


class LazyDict(dict[str, Any]):
    def __getitem__(self, key: str) -> Any:
        raise AssertionError("it was read")

    values = items = keys = __iter__ = __getitem__  # type: ignore[assignment]


class LazyList(list[Any]):
    def __getitem__(self, index: Any) -> Any:
        raise AssertionError("it was read")

    __iter__ = __getitem__  # type: ignore[assignment]


def endless() -> Iterator[Any]:
    raise AssertionError("it was advanced")
    yield


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (X, B),
        (X.numpy(), B),
        (X.to_sparse(), B),
        (torch.nested.nested_tensor([torch.zeros(2, 4), torch.zeros(3, 4)], layout=torch.jagged), 2),
        ([X, Y], B),
        ((X, None), B),
        (Pair(X, Y), B),
        ({"ids": X, "labels": Y, "name": "imagenet"}, B),
        (OrderedDict(a="text", x=X), B),
        (UserDict(input_ids=X, labels=Y), B),
        (Fields("name", X), B),
        (Detr(), B),
        (Graphs(), B),
        ([Detr(), target(2)], B),
        (([X, X, X], Y), B),
        ([[X, X], [Y, Y]], B),
        ([{"data": X, "label": Y}], B),
        ({"text": ["a", "b", "c"], "n": [1, 2, 3]}, 3),
        (["a", "b", "c"], 3),
        ((["a", "b", "c"], Y[:3]), 3),
        # lists of samples
        (((IMAGE, IMAGE[:, :4]), (target(1), target(2))), 2),
        (([IMAGE, IMAGE], [target(1), target(2)]), 2),
        ([IMAGE, IMAGE[:1]], 3),
        ([{"image": IMAGE, "height": 8}, {"image": IMAGE, "height": 8}], 2),
        ([(IMAGE, 1)] * 5, 5),
        ([(IMAGE, LABEL)] * 5, 5),
        ([(IMAGE, "dog")] * 40, 40),
        ([(IMAGE.numpy(), np.float32(1))] * 5, 5),
        # nothing to be told
        (torch.tensor(1.0), None),
        (3, None),
        (None, None),
        ("text", None),
        ([], None),
        ({}, None),
        (DataLoader(TensorDataset(Y)), None),
    ],
)
def test_samples(batch: Any, expected: int | None) -> None:
    assert batch_size(batch) == expected


LAZY = [Lazy, lambda: LazyDict(x=1), lambda: LazyList([1]), endless, lambda: iter(Lazy, 1), lambda: Lazy]


@pytest.mark.parametrize("make", LAZY)
def test_nothing_lazy_is_touched(make: Any) -> None:
    lazy = make()
    batch_size(lazy)
    assert batch_size([lazy, X]) == B
    assert batch_size({"a": lazy, "x": X}) == B
    arguments_size((lazy, X))


def test_a_long_list_is_not_walked_to_its_end() -> None:
    looked = 0

    class Counted:
        @property
        def __dict__(self) -> Any:  # type: ignore[override]
            nonlocal looked
            looked += 1
            return {}

    assert batch_size([Counted() for _ in range(10_000)]) == 10_000
    assert looked < 200


def test_arguments_of_a_function() -> None:
    assert arguments_size((X,)) == B
    assert arguments_size((X, Y)) == B
    assert arguments_size(([IMAGE, IMAGE[:, :4]],)) in (2, 3)
    assert arguments_size(([IMAGE, IMAGE[:, :4]], [target(1), target(2)])) == 2
    assert arguments_size(({"ids": X},)) == B
    assert arguments_size(("text", 3)) is None
    assert arguments_size(()) is None


TENSORS = st.sampled_from([X, Y, IMAGE, LABEL, torch.zeros(0, 3), torch.nn.Parameter(torch.zeros(2)), X.numpy()])
LEAVES = st.one_of(TENSORS, TENSORS, TENSORS, st.sampled_from(["a.png", 3, 0.5, None, True]))


@given(
    st.recursive(
        LEAVES,
        lambda of: st.one_of(
            st.lists(of, max_size=4), st.lists(of, max_size=4).map(tuple), st.dictionaries(st.text(max_size=2), of)
        ),
        max_leaves=12,
    )
)
def test_the_short_way_finds_what_the_long_one_does(batch: Any) -> None:
    assert batch_size(batch) == module._batch_size(batch)
    several = batch if type(batch) is tuple else (batch,)
    expected = module._batch_size(several[0]) if len(several) == 1 else module._common_size(several)
    assert arguments_size(several) == expected


def test_a_mode_of_the_scripts_hears_nothing() -> None:
    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            raise AssertionError(f"{function} was heard")

    with Mode():
        assert batch_size([X, Y]) == B
        assert arguments_size((X, Y)) == B


class Endless(IterableDataset[int]):
    def __iter__(self) -> Any:
        while True:
            yield 1


def drawn(**options: Any) -> SamplesPerBatch | None:
    return drawn_by(iter(DataLoader(range(20), **options)))  # type: ignore[arg-type]


def test_what_a_loader_draws() -> None:
    assert drawn(batch_size=8) == SamplesPerBatch(8, 4)
    assert drawn(batch_size=5) == SamplesPerBatch(5, 5)
    assert drawn(batch_size=8, drop_last=True) == SamplesPerBatch(8, 8)
    assert drawn(batch_size=None) is None
    assert drawn(batch_sampler=[[1, 2], [3]]) is None
    assert drawn_by(iter(DataLoader(Endless(), batch_size=4))) == SamplesPerBatch(4, None)
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
    assert loaded_samples(batch, size, SamplesPerBatch(16, 4)) == expected


def test_where_the_loader_knows_less_than_the_shape() -> None:
    assert loaded_samples(torch.zeros(35, 16), 35, None) == 35
    assert loaded_samples(torch.zeros(1, 900), 1, SamplesPerBatch(16, None)) == 1
    assert loaded_samples(torch.zeros(32, 3), 32, SamplesPerBatch(1, 1)) == 32  # the data set makes batches itself


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
    assert loaded_samples([Lazy(), own], 35, SamplesPerBatch(20, None)) == 20
    assert not asked
