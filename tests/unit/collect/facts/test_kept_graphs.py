"""Marks in autograd graphs tell which graphs of the first steps are still alive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from ddlprof.collect.facts.kept_graphs import SURE_UPDATES, KeptGraphs


def kept_of(keep: Callable[[list[Any], torch.Tensor, torch.Tensor], object], passes: int = 1) -> int | None:
    """Trains for four steps, keeps something of each, and drops the variables of the loop."""
    model, graphs, kept = nn.Linear(4, 4), KeptGraphs(), list[Any]()
    for update in range(4):
        for _ in range(passes):
            out = model(torch.ones(2, 4))
            graphs.mark({"out": (out,)}, update)
            loss = out.log_softmax(1).sum()
            graphs.mark(loss, update)
            loss.backward()
            keep(kept, out, loss)
    del out, loss
    graphs.look(SURE_UPDATES)
    return graphs.kept


@pytest.mark.parametrize(
    "keep",
    [
        lambda kept, out, loss: kept.append(loss),
        lambda kept, out, loss: kept.append(out),
        lambda kept, out, loss: kept.append(out.exp().sum()),
        lambda kept, out, loss: kept.__setitem__(slice(None), [sum(kept) + loss]),
    ],
    ids=["losses", "outputs", "made of outputs", "a sum of losses"],
)
def test_what_keeps_graphs(keep: Callable[..., object]) -> None:
    assert kept_of(keep) == 4
    assert kept_of(keep, passes=3) == 4


@pytest.mark.parametrize(
    "keep",
    [
        lambda kept, out, loss: None,
        lambda kept, out, loss: kept.append(loss.item()),
        lambda kept, out, loss: kept.append(out.detach()),
    ],
    ids=["nothing", "numbers", "values"],
)
def test_what_keeps_none(keep: Callable[..., object]) -> None:
    assert kept_of(keep) == 0


def test_one_that_is_kept_for_a_look_is_one() -> None:
    assert kept_of(lambda kept, out, loss: kept.append(out) if not kept else None) == 1


def retained(*steps: list[bool], keep: bool = False) -> bool | None:
    """Of steps with these backwards, and graphs that are kept or not."""
    graphs, kept = KeptGraphs(), []
    for update, backwards in enumerate(steps):
        out = nn.Linear(1, 1)(torch.ones(1))
        kept += [out] * keep
        graphs.mark(out, update)
        for each in backwards:
            graphs.backward(each, update)
    del out
    graphs.look(SURE_UPDATES)
    return graphs.retained


def test_a_graph_is_retained_in_vain_where_each_step_has_one_backward() -> None:
    assert retained(*[[True]] * 4) is True
    assert retained(*[[True]] * 4, keep=True) is False
    assert retained(*[[True, False]] * 4) is False
    assert retained(*[[False]] * 4) is False
    assert retained([True]) is None


def test_nothing_is_said_too_early_or_without_graphs() -> None:
    graphs = KeptGraphs()
    graphs.mark(torch.ones(1), 0)
    graphs.mark(None, 0)
    graphs.look(SURE_UPDATES)
    assert graphs.kept is None
    graphs.mark(nn.Linear(1, 1)(torch.ones(1)), 1)
    graphs.look(SURE_UPDATES - 1)
    assert graphs.kept is None
