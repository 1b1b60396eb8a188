"""Where the time of compiled functions goes: against what the script itself spends in each part of its step."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from ddlprof.model.records import Flag, StepRow
from tests.integration.hooks.conftest import Profile, Profiling

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # what torch's compiler uses of torch

BATCH, STEPS = 4, 6
COMPUTING_S, LOADING_S, LOGGING_S = 0.06, 0.04, 0.03
Step = Callable[[torch.Tensor], None]
Make = Callable[[nn.Module, torch.optim.Optimizer], Step]


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Slow(Dataset[torch.Tensor]):
    """Data that takes its time."""

    def __len__(self) -> int:
        return BATCH * (STEPS + 2)

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(LOADING_S / BATCH)
        return torch.full((3,), float(index))


@torch.library.custom_op("ddlprof_tests::compute", mutates_args=())
def compute(x: torch.Tensor) -> torch.Tensor:
    """Takes its time in forward and in backward, also inside compiled code."""
    time.sleep(COMPUTING_S / 2)
    return x.clone()


compute.register_fake(torch.empty_like)
compute.register_autograd(lambda ctx, grad: compute(grad))


def whole_step(net: nn.Module, optimizer: torch.optim.Optimizer) -> Step:
    @torch.compile(backend="aot_eager")
    def step(x: torch.Tensor) -> None:
        optimizer.zero_grad()
        compute(net(x)).sum().backward()
        optimizer.step()

    return step


def loss_function(net: nn.Module, optimizer: torch.optim.Optimizer) -> Step:
    @torch.compile(backend="aot_eager", fullgraph=True)
    def loss(x: torch.Tensor) -> Any:
        return compute(net(x)).sum()

    def step(x: torch.Tensor) -> None:
        optimizer.zero_grad()
        loss(x).backward()
        optimizer.step()

    return step


def update_alone(net: nn.Module, optimizer: torch.optim.Optimizer) -> Step:
    @torch.compile(backend="aot_eager")
    def update() -> None:
        optimizer.step()
        optimizer.zero_grad()

    def step(x: torch.Tensor) -> None:
        compute(net(x)).sum().backward()
        update()

    return step


def reduce_overhead(net: nn.Module, optimizer: torch.optim.Optimizer) -> Step:
    """CUDA graphs where there is a device."""
    loss = torch.compile(lambda x: compute(net(x)).sum(), mode="reduce-overhead")
    update = torch.compile(optimizer.step, mode="reduce-overhead")

    def step(x: torch.Tensor) -> None:
        optimizer.zero_grad()
        loss(x).backward()
        update()

    return step


def train(make: Make) -> list[torch.Tensor]:
    torch.manual_seed(0)
    net = nn.Linear(3, 2)
    step = make(net, torch.optim.Adam(net.parameters(), lr=0.1))
    for x in DataLoader(Slow(), batch_size=BATCH):
        step(x)
        time.sleep(LOGGING_S)
    return [p.detach() for p in net.parameters()]


def assert_attributed(profile: Profile) -> None:
    """Each class has at least the time that it slept for; as they add up, none has that of another."""
    rows = profile.rows
    assert [row.microbatches for row in rows] == [1] * (STEPS + 2)
    assert [row.samples for row in rows] == [BATCH] * (STEPS + 2)
    steady = [row for row in rows[2:] if not row.flags & Flag.COMPILE]
    assert len(steady) == STEPS
    for name, seconds in (("compute", COMPUTING_S), ("data", LOADING_S), ("other", LOGGING_S)):
        measured = middle(steady, name)
        assert measured >= 0.95 * seconds, (name, measured)


def middle(rows: list[StepRow], name: str) -> float:
    values = sorted(getattr(row, f"{name}_ns") for row in rows)
    return float(values[len(values) // 2]) / 1e9


@pytest.mark.parametrize(
    "make", [whole_step, *(pytest.param(make, marks=pytest.mark.slow) for make in (loss_function, update_alone))]
)
def test_forward_backward_and_update_arecompute(make: Make, profiling: Profiling) -> None:
    plain = train(make)
    torch._dynamo.reset()
    with profiling() as profile:
        profiled = train(make)
    assert_attributed(profile)
    steady = [row for row in profile.rows[2:] if not row.flags & Flag.COMPILE]
    for name in ("compute_forward", "compute_backward"):  # dynamo leaves the call of backward to Python
        assert middle(steady, name) >= 0.95 * COMPUTING_S / 2
    for a, b in zip(plain, profiled, strict=True):
        assert torch.equal(a, b)


def compiled_forward(net: nn.Module, optimizer: torch.optim.Optimizer) -> Step:
    """A method of a module, as scripts replace it."""
    net.forward = torch.compile(net.forward, backend="aot_eager")

    def step(x: torch.Tensor) -> None:
        optimizer.zero_grad()
        net.forward(x).sum().backward()
        optimizer.step()
        with torch.no_grad():
            net.eval().forward(x)
            net.train()

    return step


def test_module_that_a_compiled_function_calls_is_known(profiling: Profiling) -> None:
    for make in (whole_step, compiled_forward):
        net = nn.Linear(3, 2)
        with profiling() as profile:
            step = make(net, torch.optim.SGD(net.parameters(), lr=0.1))
            step(torch.ones(BATCH, 3))
            assert profile.session.inspector.modules[0] is net


def test_compiled_forward_of_a_module_tells_evaluation(profiling: Profiling) -> None:
    with profiling() as profile:
        train(compiled_forward)
    assert [bool(row.flags & Flag.EVALUATION) for row in profile.rows] == [False, *[True] * (STEPS + 1)]


def test_call_whose_end_dynamo_leaves_out_is_over(profiling: Profiling) -> None:
    @torch.compile(backend="aot_eager", fullgraph=True)
    def nothing_to_compile() -> None:
        return None

    with profiling() as profile:
        for _ in range(STEPS):
            with contextlib.suppress(RuntimeError):
                nothing_to_compile()
            assert profile.session.context is not None
            assert not profile.session.context.modules.inside


def test_hooks_come_back_to_what_was_compiled_before(profiling: Profiling) -> None:
    net = nn.Linear(3, 2)
    with profiling() as profile:
        step = whole_step(net, torch.optim.SGD(net.parameters(), lr=0.1))
        step(torch.ones(BATCH, 3))
        profile.session.pause()
        step(torch.ones(BATCH, 3))
        profile.session.resume()
        step(torch.ones(BATCH, 3))
    assert len(profile.rows) == 2


def test_other_threads_are_left_alone(profiling: Profiling) -> None:
    net = nn.Linear(3, 2)
    with profiling() as profile:
        step = whole_step(net, torch.optim.SGD(net.parameters(), lr=0.1))
        for _ in range(STEPS):
            step(torch.ones(BATCH, 3))
            with ThreadPoolExecutor(1) as pool:
                pool.submit(step, torch.ones(BATCH, 3)).result()
    assert len(profile.rows) == STEPS


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Skipping serialization")  # torch 2.6
@pytest.mark.timeout(300)
def test_inductor_with_cuda_graphs_asked_for(profiling: Profiling) -> None:
    with profiling() as profile:
        train(reduce_overhead)
    assert_attributed(profile)
