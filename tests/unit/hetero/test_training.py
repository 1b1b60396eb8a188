"""What a plan does to a loader and a model, in one process; real ranks are in tests/integration/dist."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset, WeightedRandomSampler

from ddlprof.base.errors import UserError
from ddlprof.hetero import apply
from ddlprof.hetero.parameter_server import servers_of
from ddlprof.hetero.plan_file import GroupWay, PlanFile, RankShare

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
    groups = [GroupWay("a", 100.0, None), GroupWay("b", 50.0, 1), GroupWay("c", 50.0, 0)]
    assert servers_of([90, 10, 40, 10, 50], groups) == [None, None, 1, 1, 0]
    assert servers_of([], groups) == []
