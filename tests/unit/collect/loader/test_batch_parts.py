"""How many tensors a batch consists of."""

from __future__ import annotations

from collections import UserDict
from typing import Any, NoReturn

import pytest
import torch

from ddlprof.collect.loader.batch_parts import BatchParts

ROW = torch.zeros(2, 8)


class Pair(tuple[Any, ...]):
    def __iter__(self) -> NoReturn:
        raise AssertionError("the user's code")


@pytest.mark.parametrize(
    ("batch", "tensors", "size"),
    [
        (ROW, 1, 64),
        ([[ROW] * 300, ROW.long()], 301, 300 * 64 + 128),
        ({"image": ROW, "boxes": (ROW, ROW), "name": "a"}, 3, 192),
        (UserDict(ids=[ROW]), 1, 64),
        (Pair([ROW, 1]), 1, 64),
        (["a", 1, object()], None, None),
    ],
)
def test_the_tensors_of_a_batch(batch: Any, tensors: int | None, size: int | None) -> None:
    parts = BatchParts()
    parts.loaded(batch)
    assert (parts.tensors, parts.bytes) == (tensors, size)


def test_the_largest_batch_counts() -> None:
    parts = BatchParts()
    for batch in ([ROW, ROW], [ROW]):
        parts.loaded(batch)
    assert (parts.tensors, parts.bytes) == (2, 128)


def test_an_endless_batch_is_left_alone() -> None:
    batch: list[Any] = []
    batch.extend([batch, batch])
    parts = BatchParts()
    parts.loaded(batch)
    assert parts.tensors is None
