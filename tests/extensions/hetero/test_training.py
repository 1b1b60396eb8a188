"""What a plan does to a loader and a model, in one process; real ranks are in tests/integration/dist."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset, WeightedRandomSampler

from ddlprof.base.errors import UserError
from ddlprof.extensions.hetero import apply
from ddlprof.extensions.hetero.parameter_server import servers_of
from ddlprof.extensions.hetero.plan_file import GroupExchange, PlanFile, RankShare
from ddlprof.extensions.hetero.training import UnevenBatches

DATA = TensorDataset(torch.arange(10.0).reshape(10, 1))


def plan(*samples: int) -> PlanFile:
    return PlanFile(1, tuple(RankShare(f"gpu{number}", "m", each) for number, each in enumerate(samples)))


def test_one_rank_gets_the_order_of_its_distributed_sampler() -> None:
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(DATA, 1, 0, seed=3)
    loader = DataLoader(DATA, batch_size=4, sampler=sampler)
    applied = apply(plan(4), torch.nn.Linear(1, 1), loader)
    for epoch in (0, 1):
        sampler.set_epoch(epoch)
        assert [batch[0].flatten().tolist() for batch in applied] == [each[0].flatten().tolist() for each in loader]
    assert len(applied) == 3


def test_gradients_are_weighted_only_where_the_weight_is_not_that_of_an_even_split() -> None:
    model = torch.nn.Linear(1, 1)
    for (x,) in apply(plan(4), model, DataLoader(DATA, batch_size=1)):
        model.zero_grad()
        model(x).sum().backward()
        assert model.bias.grad is not None
        assert model.bias.grad.item() == len(x)


@pytest.mark.parametrize(
    ("loader", "words"),
    [
        (DataLoader(DATA, sampler=WeightedRandomSampler([1.0] * 10, 10)), "what WeightedRandomSampler chooses"),
        ([1, 2], "needs a DataLoader"),
        (DataLoader(TensorDataset(torch.zeros(3, 1)), drop_last=True, batch_size=1), "less than a batch of the plan"),
    ],
)
def test_loaders_that_cannot_be_divided_are_refused(loader: object, words: str) -> None:
    with pytest.raises(UserError, match=words):
        apply(plan(4), torch.nn.Linear(1, 1), loader)


def test_another_number_of_ranks_is_refused_with_the_plans() -> None:
    with pytest.raises(UserError, match=r"2 ranks \(0 on gpu0, 1 on gpu1\), and this job has 1"):
        apply(plan(4, 2), torch.nn.Linear(1, 1), DataLoader(DATA))


def test_parameters_and_groups_meet_by_their_bytes() -> None:
    groups = [GroupExchange("a", 100.0, None), GroupExchange("b", 50.0, 1), GroupExchange("c", 50.0, 0)]
    assert servers_of([90, 10, 40, 10, 50], groups) == [None, None, 1, 1, 0]
    assert servers_of([], groups) == []


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
