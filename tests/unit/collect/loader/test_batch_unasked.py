"""Samples are counted in what a batch stores; what the script would do when asked is not done."""

from __future__ import annotations

import itertools
from collections import UserDict, namedtuple
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ddlprof.collect.loader.batch import batch_size
from tests.unit.collect.asked import AskedMode, AskedTensor, asked

Pair = namedtuple("Pair", ["x", "y"])
X = torch.zeros(5, 2)


@dataclass
class Batch:
    """As a script's own `collate_fn` may return it."""

    name: str
    x: Tensor


@pytest.mark.parametrize(
    "batch",
    [
        X, nn.Parameter(X), np.zeros((5, 2)), [X, X], (X,), Pair(X, None), {"x": X}, UserDict(x=X), Batch("a", X),
        ["text", X], [torch.tensor(1.0), X], ["a"] * 5, {"nested": {"x": [X]}}, [[X]],
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_five(batch: Any) -> None:
    assert batch_size(batch) == 5


@pytest.mark.parametrize("batch", [None, 3, "text", object(), {}, torch.tensor(1.0), iter([X])])
def test_unknown(batch: Any) -> None:
    assert batch_size(batch) is None


class Asked(Exception):
    pass


class Lazy:
    """Anything asked of it is an error."""

    def __getattribute__(self, name: str) -> Any:
        raise Asked(name)

    def __iter__(self) -> Iterator[Any]:
        raise Asked

    def __len__(self) -> int:
        raise Asked

    def __getitem__(self, key: Any) -> Any:
        raise Asked


class LazyList(list):  # type: ignore[type-arg]
    __iter__ = __len__ = __getitem__ = Lazy.__getitem__  # type: ignore[assignment]


class LazyDict(dict):  # type: ignore[type-arg]
    __iter__ = __len__ = __getitem__ = values = keys = items = Lazy.__getitem__  # type: ignore[assignment]


class Endless:
    def __iter__(self) -> Iterator[int]:
        return itertools.count()


def test_lazy_and_endless_objects_are_not_asked() -> None:
    assert batch_size(Lazy()) is None
    assert batch_size(LazyList([X])) is None
    assert batch_size(LazyDict(x=X)) == 5
    assert batch_size(Endless()) is None
    assert batch_size((Lazy(), X)) == 5
    shared = iter([X])
    assert batch_size(shared) is None
    assert next(shared) is X


def test_a_long_list_is_not_searched() -> None:
    assert batch_size([None] * 100 + [X]) == 101


def test_tensor_classes_and_modes_are_not_asked() -> None:
    own = X.as_subclass(AskedTensor)
    asked.clear()
    with AskedMode():
        assert batch_size(own) == batch_size(X) == 5
        assert not asked
