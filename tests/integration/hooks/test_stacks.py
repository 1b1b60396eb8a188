"""Stack samples of a real training: only what was seen inside of its steps, and by the user's line."""

from __future__ import annotations

import sys
import time
from collections import Counter

import torch
from torch import nn

from tests.integration.hooks.conftest import Profiling


def test_only_what_was_seen_inside_of_a_step_counts(profiling: Profiling) -> None:
    net = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)

    def step() -> None:
        net(torch.ones(2, 4)).sum().backward()
        optimizer.step()

    with profiling() as profile:
        for _ in range(150):
            step()
            time.sleep(0.01)
        step()
        time.sleep(1)  # after the last step
    samples = profile.records("q")
    assert samples
    assert {sampled.step for sampled in samples} < {row.step for row in profile.rows}
    counts = Counter[int]()
    for sampled in samples:
        counts.update(dict(zip(sampled.counts[::2], sampled.counts[1::2], strict=True)))
    places = {line.number: line for line in profile.records("l")}
    later = {number for sampled in samples if sampled.step for number in sampled.counts[::2]}
    assert all(places[number].text.startswith("tests/integration/hooks/test_stacks.py:") for number in later)
    # The session begins in conftest.py, which counts for step 0.
    assert all(line.text.startswith("tests/integration/hooks/") for line in places.values())
    assert places[counts.most_common(1)[0][0]].what == ("sleep" if sys.version_info >= (3, 11) else "")
