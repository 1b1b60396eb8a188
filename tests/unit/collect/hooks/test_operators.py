"""What torch's profiler tells of the operators in a gap."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from ddlprof.collect.hooks.operators import LegacyProfiler

X, WEIGHT = torch.randn(4, 4), torch.randn(4, 4, requires_grad=True)


def prepare() -> Tensor:
    return (X * 2).exp()


def loss() -> Tensor:
    return (X @ WEIGHT).relu().sum()


def nothing_recorded() -> None:
    prepare()
    with torch.no_grad():
        loss()


@pytest.mark.parametrize(
    ("work", "all_of_them", "recorded"),
    [
        (lambda: (prepare(), loss()), 5, 3),
        (lambda: (loss(), prepare()), 5, 5),
        (loss, 3, 3),
        (lambda: (prepare(), X @ WEIGHT), 3, 1),
        (nothing_recorded, 5, 0),
        (lambda: None, 0, 0),
    ],
)
def test_only_operators_from_the_first_on_that_autograd_recorded(
    work: Callable[[], object], all_of_them: int, recorded: int
) -> None:
    log = LegacyProfiler(torch)
    for only_recorded, expected in ((False, all_of_them), (True, recorded)):
        assert log.start()
        work()
        found = log.stop(only_recorded)()
        assert len(found) == expected
        assert found == sorted(found)
