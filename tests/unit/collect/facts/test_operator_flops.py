"""The FLOP count agrees with torch's own and leaves results, random numbers and modes as they are."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from ddlprof.collect.compiler.dynamo import used_dynamo
from ddlprof.collect.facts.operator_flops import FlopCount
from tests.unit.collect.programs import run_all


class Attention(nn.Module):
    """A small transformer on `scaled_dot_product_attention`."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.encoder(x)  # type: ignore[no-any-return]


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.3), nn.ReLU(), nn.Linear(32, 16))

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.body, x, use_reentrant=False)  # type: ignore[no-any-return]


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "convnet": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.2), nn.Flatten(), nn.Linear(8 * 36, 5)
        ),
        (4, 3, 8, 8),
    ),
    "mlp": (lambda: nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Dropout(0.5), nn.Linear(32, 4)), (8, 16)),
    "transformer": (Attention, (2, 10, 32)),
    "checkpointed": (Checkpointed, (8, 16)),
}


def train_once(name: str, count: FlopCount | None = None) -> tuple[list[Tensor], Tensor]:
    """Gradients and the state of the random numbers after one step."""
    torch.manual_seed(7)
    build, shape = MODELS[name]
    model, x = build(), torch.randn(shape)
    if count:
        assert count.enter()
    loss = model(x).square().sum()
    if count:
        count.mark_backward()
    loss.backward()
    if count:
        assert count.exit()
    return [p.grad for p in model.parameters() if p.grad is not None], torch.get_rng_state()


@pytest.mark.parametrize("name", MODELS)
def test_totals_are_those_of_torch(name: str) -> None:
    count = FlopCount()
    with sdpa_kernel(SDPBackend.MATH):  # torch has no formula for the CPU's flash kernel
        train_once(name, count)
        with FlopCounterMode(display=False) as reference:
            train_once(name)
    assert count.forward + count.backward == reference.get_total_flops()
    assert count.backward >= count.forward > 0
    assert count.unknown == 0


@pytest.mark.parametrize("name", MODELS)
def test_gradients_and_random_numbers_are_bitwise_the_same(name: str) -> None:
    gradients, state = train_once(name)
    counted_gradients, counted_state = train_once(name, FlopCount())
    assert all(torch.equal(a, b) for a, b in zip(gradients, counted_gradients, strict=True))
    assert torch.equal(state, counted_state)


@pytest.mark.parametrize("groups", [1, 4, 8])
@pytest.mark.parametrize("kind", [nn.Conv2d, nn.ConvTranspose2d])
def test_each_gradient_of_a_convolution_costs_as_much_as_forward(kind: Any, groups: int) -> None:
    """torch's own formula counts the weight's gradient of a grouped one as if it were dense."""
    convolution, x = kind(8, 16, 3, groups=groups), torch.randn(2, 8, 7, 7, requires_grad=True)
    count = FlopCount()
    count.enter()
    y = convolution(x)
    count.mark_backward()
    y.sum().backward()
    count.exit()
    points = (5 if kind is nn.Conv2d else 7) ** 2
    assert count.forward == 2 * 2 * points * 9 * 8 * 16 // groups
    assert count.backward == 2 * count.forward


def test_fused_attention_of_the_cpu_is_counted_like_its_matrix_products() -> None:
    fused, math = FlopCount(), FlopCount()
    train_once("transformer", fused)
    with sdpa_kernel(SDPBackend.MATH):
        train_once("transformer", math)
    assert fused.forward == math.forward
    assert fused.backward == math.backward


def test_operators_on_tensor_subclasses_are_counted_inside() -> None:
    class FirstRow(Tensor):
        """Every operator sees only the first row of the wrapped tensor."""

        whole: Tensor

        @classmethod
        def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
            return func(*(a.whole[:1] if isinstance(a, FirstRow) else a for a in args), **(kwargs or {}))

    whole = torch.ones(2, 3)
    first_row: Any = Tensor._make_wrapper_subclass(FirstRow, whole.shape)
    first_row.whole = whole
    count = FlopCount()
    count.enter()
    product = torch.mm(first_row, torch.ones(3, 4))
    count.exit()
    assert torch.equal(product, torch.full((1, 4), 3.0))
    assert count.forward == 2 * 1 * 3 * 4


def test_a_failing_formula_is_unknown_and_the_operator_still_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object, **kwargs: object) -> int:
        raise ZeroDivisionError

    monkeypatch.setitem(torch.utils.flop_counter.flop_registry, torch.ops.aten.mm, broken)
    count = FlopCount()
    count.enter()
    product = torch.ones(2, 2) @ torch.ones(2, 2)
    count.exit()
    assert (count.forward, count.unknown) == (0, 1)
    assert torch.equal(product, torch.full((2, 2), 2.0))


def test_an_exception_of_the_user_passes_and_exit_cleans_up() -> None:
    count = FlopCount()
    count.enter()
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        torch.ones(2, 3) @ torch.ones(2, 3)
    assert count.exit()
    assert not count.exit()
    assert _get_current_dispatch_mode_stack() == []


class PassThrough(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def test_exit_from_below_keeps_the_modes_of_the_user() -> None:
    count, outer, inner = FlopCount(), PassThrough(), PassThrough()
    count.enter()
    with outer, inner:
        assert count.exit()
        assert _get_current_dispatch_mode_stack() == [outer, inner]
    assert _get_current_dispatch_mode_stack() == []


def test_it_stays_out_where_it_could_not_leave_in_order() -> None:
    count = FlopCount()
    with PassThrough():
        assert not count.enter()
    assert count.enter()
    assert not count.enter()

    left: list[bool] = []
    other = threading.Thread(target=lambda: left.append(count.exit()))
    other.start()
    other.join()
    weight = torch.ones(2, requires_grad=True)
    weight.register_post_accumulate_grad_hook(lambda _: left.append(count.exit()))
    weight.sum().backward()
    assert left == [False, False]

    assert count.exit()
    assert _get_current_dispatch_mode_stack() == []


def test_used_dynamo_reads_the_counters_of_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch._dynamo.utils", raising=False)
    assert not used_dynamo()
    assert "torch._dynamo.utils" not in sys.modules
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", SimpleNamespace(counters={}))
    assert not used_dynamo()
    counters = {"frames": {"total": 1, "ok": 1}}
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", SimpleNamespace(counters=counters))
    assert used_dynamo()


COMPILES = """
import torch
from ddlprof.collect.compiler.dynamo import used_dynamo
from ddlprof.collect.facts.operator_flops import FlopCount
assert not used_dynamo()
graphs = []
def backend(graph, inputs):
    graphs.append(graph)
    return graph
count = FlopCount()
assert count.enter()
torch.compile(lambda x: (x @ x).relu(), backend=backend, fullgraph=True)(torch.ones(3, 3))
assert count.exit()
assert len(graphs) == 1 and used_dynamo(), graphs
"""

TWO_RANKS = """
import os, sys, torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from ddlprof.collect.facts.operator_flops import FlopCount

rank = int(sys.argv[1])
store = dist.FileStore(sys.argv[2], 2)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2)

def train(counting):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.Dropout(0.2), nn.Linear(64, 64))
    model = DistributedDataParallel(net, bucket_cap_mb=0.01)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(rank)
    for _ in range(3):
        count = FlopCount()
        assert not counting or count.enter()
        loss = model(torch.randn(8, 64)).square().sum()
        count.mark_backward()
        loss.backward()
        assert not counting or count.exit()
        optimizer.step()
        optimizer.zero_grad()
    return [p.detach() for p in model.parameters()], torch.get_rng_state(), count

plain, plain_state, _ = train(False)
counted, counted_state, count = train(True)
assert all(torch.equal(a, b) for a, b in zip(plain, counted))
assert torch.equal(plain_state, counted_state)
one = 2 * 8 * 64 * 64
assert (count.forward, count.backward, count.unknown) == (2 * one, 3 * one, 0), vars(count)
dist.barrier()
os._exit(0)  # torch's own shutdown of gloo sometimes aborts, with and without the count
"""


def test_compilation_under_the_count_goes_on_as_without() -> None:
    run_all([COMPILES])


@pytest.mark.dist
def test_ddp_over_two_processes_is_bitwise_the_same(tmp_path: Path) -> None:
    run_all(*([TWO_RANKS, str(rank), str(tmp_path / "store")] for rank in range(2)))
