"""Forward, backward and optimizer of real steps, and the memory that they take."""

from __future__ import annotations

import time
from typing import Any

import psutil
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ddlprof.collect.facts.counters import peak_rss_bytes
from ddlprof.model.records import StepRow
from scripts.lab.virtual_clock import VirtualClock
from tests.integration.hooks.conftest import Profiling

FORWARD_S, BACKWARD_S, UPDATE_S = 0.01, 0.03, 0.02
STEPS = 6
READ_S = 1.0
"""Within it the helper thread has read the memory, on a busy machine too."""


class Slow(torch.autograd.Function):
    """Takes its time, more in the backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        time.sleep(FORWARD_S)
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        assert ctx.saved_tensors[0].shape == grads[0].shape
        time.sleep(BACKWARD_S)
        return grads[0]


class Net(nn.Module):
    def __init__(self, recomputes: bool = False) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.recomputes = recomputes

    def forward(self, x: torch.Tensor) -> Any:
        x = self.layer(x)
        return checkpoint(Slow.apply, x, use_reentrant=False) if self.recomputes else Slow.apply(x)


class SlowSgd(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        time.sleep(UPDATE_S)
        return super().step(closure)


def parts_s(row: StepRow) -> tuple[float, float, float]:
    parts = (row.compute_forward_ns, row.compute_backward_ns, row.compute_optimizer_ns)
    known = [part for part in parts if part is not None]
    assert sum(known) == row.compute_ns
    forward, backward, optimizer = (part / 1e9 for part in known)
    return forward, backward, optimizer


def train(model: nn.Module, micro_batches: int = 1, updates: int = STEPS) -> None:
    optimizer = SlowSgd(model.parameters(), lr=0.1)
    for _ in range(updates):
        for _ in range(micro_batches):
            model(torch.randn(4, 8)).square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def test_each_part_is_what_it_takes(profiling: Profiling, clock: VirtualClock) -> None:
    with profiling() as profile:
        train(Net())
    assert len(profile.rows) == STEPS
    for row in profile.rows:
        assert parts_s(row) == pytest.approx((FORWARD_S, BACKWARD_S, UPDATE_S))


def test_micro_batches_and_activations_that_are_computed_again(profiling: Profiling, clock: VirtualClock) -> None:
    with profiling() as profile:
        train(Net(recomputes=True), micro_batches=2)
    assert [row.microbatches for row in profile.rows] == [2] * STEPS
    for row in profile.rows:
        assert parts_s(row) == pytest.approx((2 * FORWARD_S, 2 * (BACKWARD_S + FORWARD_S), UPDATE_S))


def test_gradients_without_a_call_of_backward(profiling: Profiling) -> None:
    with profiling() as profile:
        model = Net()
        optimizer = SlowSgd(model.parameters(), lr=0.1)
        for _ in range(STEPS):
            loss = model(torch.randn(4, 8)).sum()
            for parameter, grad in zip(
                model.parameters(), torch.autograd.grad(loss, list(model.parameters())), strict=True
            ):
                parameter.grad = grad
            optimizer.step()
    assert [row.compute_backward_ns for row in profile.rows] == [None] * STEPS
    assert [row.compute_optimizer_ns for row in profile.rows] == [None] * STEPS


def test_memory_is_what_the_process_has_held_so_far(profiling: Profiling) -> None:
    before = peak_rss_bytes() or 0
    more = before - psutil.Process().memory_info().rss + (256 << 20)  # some of it may be given back meanwhile
    with profiling() as profile:
        train(Net(), updates=12)  # the first ten are held back: nobody knows yet what a step is
        time.sleep(READ_S)
        held = torch.ones(more // 4)
        train(Net())
        time.sleep(READ_S)
        del held
        train(Net())
    peaks = [row.peak_memory_bytes or 0 for row in profile.rows]
    assert len(peaks) == 12 + 2 * STEPS
    assert peaks == sorted(peaks)
    assert before <= peaks[0]
    assert before + (32 << 20) <= peaks[-STEPS] <= peaks[-1] <= (peak_rss_bytes() or 0) + (1 << 20)
    assert peaks[0] < peaks[-STEPS]
    assert profile.records("c")[-1].process_peak_rss_bytes >= peaks[-1]
