"""What lines do, by what they call."""

from __future__ import annotations

import random

import pytest

from ddlprof.collect.process.named_work import work_of_call
from ddlprof.model.source_locations import DRAWS, JOINS


@pytest.mark.parametrize(
    ("name", "module", "word"),
    [
        (random.sample.__name__, random.__name__, DRAWS),  # as from a deque, which walks to each item
        ("sample", "torch.distributions.normal", ""),
        ("sample", "", ""),
        ("random", "random", ""),
        ("permutation", "", DRAWS),
        ("cat", "", JOINS),
    ],
)
def test_what_a_line_does_by_the_function_that_it_calls(name: str, module: str, word: str) -> None:
    assert work_of_call(name, module) == word
