"""The batches of unequal ranks: together they are the epoch, and their weights are those of one process."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlprof.hetero.batches import UnevenBatches


@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(1, 60), st.booleans(), st.randoms())
def test_together_ranks_have_each_batch_of_one_process(
    samples: list[int], length: int, drop_last: bool, dice: object
) -> None:
    order = list(range(length))
    dice.shuffle(order)  # type: ignore[attr-defined]
    ranks = [UnevenBatches(samples, rank, length, drop_last, lambda: order) for rank in range(len(samples))]
    batches = [list(rank) for rank in ranks]
    assert {len(rank) for rank in batches} == {len(ranks[0])}
    whole = sum(samples)
    expected = [order[begin : begin + whole] for begin in range(0, length, whole)]
    if drop_last and length % whole:
        expected.pop()
    assert len(expected) == len(ranks[0])
    for number, batch in enumerate(expected):
        weights = [rank.weight(number) for rank in ranks]
        assert sum(weights) == pytest.approx(1)
        joined = [index for rank, weight in zip(batches, weights, strict=True) if weight for index in rank[number]]
        assert joined == batch
        assert all(rank[number] for rank in batches)  # nobody is left out: all ranks take part in every step


def test_an_order_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="an epoch of 3 samples"):
        list(UnevenBatches([1], 0, 4, False, lambda: range(3)))
