"""Operations read off the autograd graph are those that torch counts, and reading changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from ddlprof.collect.hooks.backward import install
from ddlprof.collect.hooks.context import Inspection
from ddlprof.collect.hooks.table import hook_context
from ddlprof.collect.recorder import Recorder
from ddlprof.operators.features import weight_elements
from ddlprof.operators.graph_flops import GraphFlops
from ddlprof.torch_private import engine
from tests.unit.collect.asked import AskedMode, AskedTensor, asked


class Block(nn.Module):
    """A convolution, a grouped one and a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1)
        )
        self.shortcut = nn.Conv2d(8, 16, 1, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.shortcut(x))


class Attention(nn.Module):
    def __init__(self, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        return x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.first = nn.Linear(16, 16)
        self.body = nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.3), nn.ReLU(), nn.Linear(32, 16), nn.ReLU())
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.body, self.first(x), use_reentrant=self.reentrant)  # type: ignore[no-any-return]


class Products(nn.Module):
    """Matrix products of every form."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.batched = nn.Parameter(torch.ones(6, 7)), nn.Parameter(torch.ones(4, 7, 5))

    def forward(self, x: Tensor) -> Tensor:
        y = x @ self.weight
        z = torch.baddbmm(torch.zeros(5), torch.einsum("bij,jk->bik", x, self.weight), self.batched)
        return z.sum() + torch.bmm(y, self.batched).sum()


TELLS_HOOKS = hasattr(torch._C._autograd.SavedTensor, "unpack_hook")
"""torch before 2.13 does not tell what a saved tensor is behind: see docs/compatibility.md."""

MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Dropout(0.5), nn.Linear(32, 4)), (8, 16)),
    "resnet": (lambda: nn.Sequential(nn.Conv2d(3, 8, 3), Block(), nn.Flatten(), nn.Linear(16 * 9, 5)), (4, 3, 8, 8)),
    "transposed convolution": (
        lambda: nn.Sequential(nn.Conv1d(3, 8, 3), nn.ConvTranspose1d(8, 4, 5, stride=2)), (2, 3, 20)
    ),
    "transformer": (
        lambda: nn.TransformerEncoder(
            nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True), 2, enable_nested_tensor=False
        ),
        (2, 10, 32),
    ),
    "attention": (Attention, (2, 10, 32)),
    "products": (Products, (4, 3, 6)),
    "gru": (lambda: Only(nn.GRU(8, 16, 2, batch_first=True)), (4, 7, 8)),
    **({"checkpointed": (lambda: Checkpointed(False), (8, 16))} if TELLS_HOOKS else {}),
    "reentrant checkpointed": (lambda: Checkpointed(True), (8, 16)),
}  # fmt: skip


class Only(nn.Module):
    """The first thing that a layer returns."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[0]  # type: ignore[no-any-return]


class Counting(Inspection):
    def __init__(self, count: GraphFlops) -> None:
        self.count = count

    def forward(self, module: Any, inputs: Any) -> None:
        pass

    def update(self, optimizer: Any) -> None:
        pass

    def backward(self, roots: Any, nested: bool, kept: bool, created: bool = False) -> None:
        self.count.count(roots, nested, kept, created)


def backward(loss: Any, **options: Any) -> GraphFlops:
    """Runs a backward under the hook; returns what it counted."""
    count = GraphFlops()
    uninstall = install(hook_context(torch, Recorder(), inspection=Counting(count)))
    try:
        torch.autograd.backward(loss, **options)
    finally:
        uninstall()
    return count


def count_of(model: nn.Module, x: Tensor) -> tuple[float, float] | None:
    return backward(model(x).sum()).of_microbatch(*weight_elements(model))


def test_fused_attention_is_counted_as_its_products_are() -> None:
    model, x = Attention(), torch.randn(2, 10, 32)
    fused = count_of(model, x)
    with sdpa_kernel(SDPBackend.MATH):
        apart = count_of(model, x)
    assert fused is not None
    assert fused == apart  # what a kernel computes again is no work of the model's


@pytest.mark.parametrize("groups", [1, 4, 8])
@pytest.mark.parametrize("kind", [nn.Conv2d, nn.ConvTranspose2d])
def test_each_gradient_of_a_convolution_costs_as_much_as_forward(kind: Any, groups: int) -> None:
    """torch's own formula counts the weight's gradient of a grouped one as if it were dense."""
    points = (5 if kind is nn.Conv2d else 7) ** 2
    forward = 2 * 2 * points * 9 * 8 * 16 // groups
    layer = kind(8, 16, 3, groups=groups)
    assert count_of(layer, torch.randn(2, 8, 7, 7, requires_grad=True)) == (forward, 2 * forward)
    if TELLS_HOOKS or kind is nn.Conv2d:
        assert count_of(layer, torch.randn(2, 8, 7, 7)) == (forward, forward)


@pytest.mark.parametrize("layers", [1, 2])
def test_an_lstm_that_one_kernel_runs_through_time(layers: int) -> None:
    loss = nn.LSTM(8, 16, layers, batch_first=True)(torch.randn(4, 7, 8))[0].sum()
    to_input, to_itself = 2 * 4 * 7 * 8 * 64, 2 * 4 * 7 * 16 * 64
    forward = to_input + to_itself + 2 * to_itself * (layers - 1)
    assert backward(loss).of_microbatch(0, 0) == (forward, 2 * forward - to_input)


def test_a_mean_micro_batch() -> None:
    count, layer = GraphFlops(), nn.Linear(4, 4)
    for samples in (2, 4):
        count.count(layer(torch.ones(samples, 4)).sum())
    assert count.of_microbatch(20, 0) == (3 * 32, 3 * 32)


@pytest.mark.filterwarnings("ignore:Using backward")
@pytest.mark.parametrize("options", [{"retain_graph": True}, {"create_graph": True}])
def test_two_backwards_through_one_forward(options: Any) -> None:
    layer, count = nn.Linear(4, 4), GraphFlops()
    uninstall = install(hook_context(torch, Recorder(), inspection=Counting(count)))
    try:
        y = layer(torch.ones(2, 4))
        torch.autograd.backward(y.sum(), inputs=[layer.bias], **options)
        (y.square().sum() + layer(y).sum()).backward()
    finally:
        uninstall()
    assert (count.microbatches, count.forward, count.backward) == (2, 2 * 64, 2 * 64 + 2 * 64)
    assert count.repeated_share == (None if "create_graph" in options else 0.25)


@pytest.mark.parametrize(
    ("edges", "share", "nonzero"),
    [(100, 2 * 200 * 200 * 8 * 2, 0.0025), (0, 2 * 200 * 200 * 8 * 2, 0.0), (800, 0, 0.0)],
)
def test_products_with_a_matrix_of_almost_only_zeros(edges: int, share: int, nonzero: float) -> None:
    graph, features, layer = torch.zeros(200, 200), torch.ones(200, 16), nn.Linear(16, 8)
    graph.view(-1)[torch.arange(edges) * 50] = 1.0
    count = backward((graph @ layer(features)).sum())
    of_layer = 2 * 200 * 16 * 8 * 2  # whose input has no zeros
    assert count.sparse_share == share / (of_layer + 2 * 200 * 200 * 8 * 2)
    assert count.nonzero == nonzero


def test_a_matrix_that_is_made_for_each_step_is_none_of_zeros() -> None:
    count = backward((torch.zeros(200, 200) @ nn.Parameter(torch.ones(200, 16))).sum())
    count.look_at_zeros()
    assert count.sparse_share == 0.0


def test_a_matrix_that_fills_later_is_none_of_zeros() -> None:
    bank, weight = torch.zeros(200, 200), nn.Parameter(torch.ones(200, 16))
    count = backward((bank @ weight).sum())
    count.look_at_zeros()
    assert count.sparse_share == 1.0
    bank[:100] = 1.0
    count.look_at_zeros()
    assert count.sparse_share == 0.0


def test_operands_in_which_no_zeros_can_be_counted_lose_no_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError

    monkeypatch.setattr(engine, "nonzero_share", fails)
    count = backward((torch.zeros(200, 200) @ nn.Parameter(torch.ones(200, 16))).sum())
    assert count.forward == 2 * 200 * 200 * 16
    assert count.sparse == 0


def test_a_large_matrix_is_looked_at_in_all_columns() -> None:
    column = torch.zeros(2048, 2048)
    column[:, 0] = 1.0
    assert engine.nonzero_share(column, 1, 2**16) == pytest.approx(1 / 2048, rel=0.2)


def test_zeros_are_counted_in_what_needs_no_gradient_only_and_in_large_matrices() -> None:
    weight, small = nn.Parameter(torch.zeros(200, 200)), torch.zeros(8, 200)
    assert backward((small @ weight).sum()).sparse_share == 0.0
    assert backward((torch.eye(200)[:, :100].reshape(100, 200) @ weight).sum()).sparse_share == 1.0


class OwnProduct(torch.autograd.Function):
    """A matrix product that nobody sees into."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        return x @ weight

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0], torch.ones(4, 4)


class OwnActivation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.sigmoid()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0]


class Own(nn.Module):
    def __init__(self, hides_weight: bool) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
        self.weight = nn.Parameter(torch.ones(4, 4)) if hides_weight else None

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        y = OwnActivation.apply(y) if self.weight is None else OwnProduct.apply(y, self.weight.T)
        return self.last(y)  # type: ignore[no-any-return]


def test_a_function_of_somebodys_own_makes_a_lower_bound() -> None:
    model = Own(hides_weight=False)
    count = backward(model(torch.ones(2, 4)).sum())
    assert count.unknown == 1
    assert count.of_microbatch(*weight_elements(model)) == (2 * 64, 3 * 64)
    assert count.repeated_share == 0.0


def test_behind_a_function_with_a_weight_several_losses_are_not_told_from_micro_batches() -> None:
    assert backward(Own(hides_weight=True)(torch.ones(2, 4)).sum()).repeated_share is None


def test_a_function_with_a_weight_inside_leaves_nothing_to_say() -> None:
    assert count_of(Own(hides_weight=True), torch.ones(2, 4)) is None


@pytest.mark.usefixtures("dynamo_forgets")
def test_compiled_code_leaves_nothing_to_say() -> None:
    model = nn.Linear(4, 4)
    compiled: Any = torch.compile(model, backend="aot_eager")
    assert backward(compiled(torch.ones(2, 4)).sum()).of_microbatch(*weight_elements(model)) is None


def frozen(model: nn.Module) -> nn.Module:
    return model.requires_grad_(False)


@pytest.mark.skipif(not TELLS_HOOKS, reason="needs torch 2.13")
@pytest.mark.parametrize("middle", [nn.Conv2d(4, 4, 3, padding=1), nn.ConvTranspose2d(4, 4, 3, padding=1)])
def test_frozen_layers_that_gradients_pass_are_counted(middle: nn.Module) -> None:
    model = nn.Sequential(nn.Conv2d(4, 4, 1), frozen(middle), nn.Flatten(), nn.Linear(36, 2))
    first, second, last = 2 * 2 * 9 * 16, 2 * 2 * 9 * 16 * 9, 2 * 2 * 36 * 2
    assert count_of(model, torch.ones(2, 4, 3, 3)) == (first + second + last, first + second + 2 * last)


def test_a_frozen_table_that_is_only_looked_up_is_no_work() -> None:
    model = nn.Sequential(frozen(nn.Embedding(100, 8)), nn.Linear(8, 2))
    assert count_of(model, torch.zeros(3, dtype=torch.int64)) == (96, 96)


def test_saved_tensors_are_not_unpacked() -> None:
    unpacked: list[Tensor] = []

    def unpack(tensor: Tensor) -> Tensor:
        unpacked.append(tensor)
        return tensor

    model = nn.Sequential(nn.Conv2d(4, 4, 1), frozen(nn.Conv2d(4, 4, 1)))
    with saved_tensors_hooks(lambda tensor: tensor, unpack):
        loss = model(torch.ones(1, 4, 2, 2)).sum()
    count = GraphFlops()
    count.count(loss)
    assert not unpacked
    assert count.of_microbatch(*weight_elements(model)) is None  # the frozen kernel's size is behind the hook


def test_iterators_of_roots_are_left_to_backward() -> None:
    weight = torch.ones(3, requires_grad=True)
    backward(loss for loss in [weight.sum(), weight.sum()])
    assert torch.equal(weight.grad, torch.full((3,), 2.0))  # type: ignore[arg-type]


def test_classes_and_modes_of_the_script_are_not_asked() -> None:
    loss = nn.Linear(4, 4)(torch.ones(2, 4).as_subclass(AskedTensor)).sum()
    count = GraphFlops()
    asked.clear()
    with AskedMode():
        count.count([loss])
        assert not asked
    assert count.forward == 64


def test_a_large_graph_is_given_up(slow_clock: Callable[[], int]) -> None:
    loss = torch.ones(2, requires_grad=True) @ torch.ones(2, 2)
    for _ in range(1024):
        loss = loss + 1
    count = GraphFlops(slow_clock)
    count.count(loss.sum())
    assert count.enough
    assert count.of_microbatch(0, 0) is None


@pytest.mark.parametrize("roots", [None, [], torch.ones(2), object(), [None]])
def test_roots_without_a_graph(roots: Any) -> None:
    count = GraphFlops()
    count.count(roots)
    assert count.of_microbatch(0, 0) is None
