"""The operators of small models: what they are, what they cost, and how they follow the batch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from ddlprof.base.errors import UserError
from ddlprof.model.operators import PHASES, Operator, StepOperators, model_flops
from ddlprof.operators.trace_cuda import attention_kernel
from ddlprof.operators.trace_step import Inputs, StepSettings, trace_step
from ddlprof.recommender.compute.what_if import as_asked
from tests.short import first_short

Factory = Callable[[], nn.Module]


def inputs(*shape: int, dtype: torch.dtype = torch.float32) -> Callable[[int], Inputs]:
    return lambda batch: Inputs([torch.empty((batch, *shape), dtype=dtype)], {})


def trace(
    model: nn.Module, *shape: int, batch: int = 4, optimizer: str = "none", dtype: torch.dtype = torch.float32,
    **settings: Any,
) -> StepOperators:  # fmt: skip
    halves = {"bf16": torch.bfloat16, "fp16": torch.float16}
    if dtype.is_floating_point:
        dtype = halves.get(settings.get("precision", ""), dtype)
    return trace_step(model, inputs(*shape, dtype=dtype), StepSettings(batch, optimizer=optimizer, **settings))


def of(step: StepOperators, kind: str, phase: str = "forward") -> list[Operator]:
    return [each for each in step.operators if (each.kind, each.phase) == (kind, phase)]


def only(step: StepOperators, kind: str, phase: str = "forward") -> Operator:
    (found,) = of(step, kind, phase)
    return found


class Attention(nn.Module):
    def __init__(self, width: int = 64, heads: int = 4, causal: bool = True) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv = nn.Linear(width, 3 * width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)


class Decoder(nn.Module):
    """Tied embedding, blocks and a loss of its own, as Hugging Face's models have them."""

    def __init__(self, blocks: int = 3) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, 32)
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True) for _ in range(blocks))
        self.head = nn.Linear(32, 100, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> dict[str, Tensor]:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        logits = self.head(x)
        return {"loss": F.cross_entropy(logits.flatten(0, 1), tokens.flatten()), "logits": logits}


def small_resnet() -> nn.Module:
    def block() -> nn.Module:
        return nn.Sequential(nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())

    return nn.Sequential(
        nn.Conv2d(3, 16, 7, 2, 3), nn.MaxPool2d(3, 2, 1), nn.Sequential(block(), block()),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10),
    )  # fmt: skip


def test_backward_of_a_product_is_two_transposed_ones() -> None:
    step = trace(nn.Sequential(nn.Linear(10, 20), nn.Linear(20, 30)), 10)
    assert {each.shape for each in of(step, "product", "backward")} == {(1, 30, 20, 4), (1, 4, 20, 30), (1, 20, 10, 4)}


@pytest.mark.parametrize(
    ("precision", "name"),
    [
        ("fp32", "scaled_dot_product_efficient_attention_causal"),
        ("bf16", "scaled_dot_product_flash_attention_causal"),
        ("amp-fp16", "scaled_dot_product_flash_attention_causal"),
    ],
)
def test_attention_is_the_kernel_that_cuda_takes(precision: str, name: str) -> None:
    step = trace(Attention(), 16, 64, batch=2, precision=precision)
    forward, backward = only(step, "attention"), only(step, "attention", "backward")
    assert (forward.name, forward.shape) == (name, (2 * 4, 16, 16, 16))
    assert forward.flops == 2 * 2 * 8 * 16 * 16 * 16
    assert (backward.name, backward.flops) == (f"{name}_backward", 2.5 * forward.flops)
    size, element = 8 * 16 * 16, 4 if precision == "fp32" else 2
    assert forward.bytes == 4 * size * element + 4 * 8 * 16


class Masked(nn.Module):
    """One attention with a causal mask, as an argument or as a tensor."""

    def __init__(self, as_tensor: bool, kernel: SDPBackend | None) -> None:
        super().__init__()
        self.q = nn.Linear(64, 64)
        self.as_tensor, self.kernel = as_tensor, kernel

    def forward(self, x: Tensor) -> Tensor:
        q = self.q(x).unflatten(-1, (2, 32)).transpose(1, 2)
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril() if self.as_tensor else None
        with sdpa_kernel(self.kernel) if self.kernel else contextlib.nullcontext():
            return F.scaled_dot_product_attention(q, q, q, mask, is_causal=mask is None)


@pytest.mark.parametrize(("heads", "fused"), [(4, True), (2, False)])
def test_attention_in_fp32_is_fused_if_it_may_be_grouped_and_is_not(heads: int, fused: bool) -> None:
    """transformers allows for groups always; CUDA's kernel for fp32 goes by the heads that there are."""
    query, key = (torch.empty(2, each, 16, 32) for each in (4, heads))
    assert (attention_kernel(query, key, key, None) is not None) == fused


def test_time_follows_what_a_kernel_does_and_the_mfu_what_the_model_needs() -> None:
    length, head = 1024, 2 * 1024 * 1024 * 2 * 2 * 32
    done, needed = {}, {}
    for name, as_tensor, kernel in (
        ("flash", False, None),
        ("mask", True, None),
        ("math", False, SDPBackend.MATH),
    ):
        step = trace(Masked(as_tensor, kernel), length, 64, batch=2, precision="bf16")
        scores = [each for each in step.operators if each.kind == "attention" or each.name == "bmm"]
        for phase in ("forward", "backward"):
            of_phase = [each for each in scores if each.phase == phase]
            done[name, phase] = sum(each.flops * each.count for each in of_phase)
            needed[name, phase] = sum(model_flops(each) * each.count for each in of_phase)
    share = (8 * 9 / 2) / 64  # of the tiles of 128 by 128
    for name, forward, backward in (("flash", share, 2.5 * share), ("mask", 1.0, 2.5), ("math", 1.0, 2.0)):
        assert (done[name, "forward"], done[name, "backward"]) == (2 * head * forward, 2 * head * backward)
        assert (needed[name, "forward"], needed[name, "backward"]) == (2 * head, 4 * head)


def test_attention_in_parts_where_no_kernel_fits() -> None:
    step = trace(Attention(width=12, heads=4, causal=False), 16, 12, batch=2)  # heads of three numbers
    assert not of(step, "attention")
    assert only(step, "softmax").shape == (2 * 4 * 16, 16)
    assert {each.shape for each in of(step, "product") if each.name == "bmm"} == {(8, 16, 16, 3), (8, 16, 3, 16)}


def test_normalisations() -> None:
    step = trace(nn.Sequential(nn.LayerNorm(64), nn.RMSNorm(64)), 5, 64, batch=2)
    assert {each.shape for each in of(step, "normalization")} == {(10, 64)}
    layer = next(each for each in of(step, "normalization") if "layer" in each.name)
    assert layer.bytes == 4 * (2 * 10 * 64 + 2 * 64 + 2 * 10)
    images = trace(nn.Sequential(nn.BatchNorm2d(6), nn.GroupNorm(3, 6)), 6, 5, 5, batch=2)
    batch, group = of(images, "normalization")
    assert (batch.shape, batch.grows) == ((6, 2 * 25), 1)
    assert (group.shape, group.grows) == ((2 * 3, 2 * 25), 0)


@pytest.mark.parametrize(("kind", "gates"), [(nn.LSTM, 4), (nn.GRU, 3), (nn.RNN, 1)])
def test_recurrent_layers_are_one_call(kind: Any, gates: int) -> None:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = kind(8, 16, num_layers=2, batch_first=True, bidirectional=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.layers(x)[0]  # type: ignore[no-any-return]

    step = trace(Last(), 5, 8, batch=3)
    forward, backward = only(step, "recurrent"), only(step, "recurrent", "backward")
    assert (forward.shape, forward.grows) == ((5, 3, 16, 4), 1)
    weights = gates * 16 * 2 * ((8 + 16) + (32 + 16))
    assert forward.flops == 2 * 5 * 3 * weights
    assert backward.flops == 2 * forward.flops


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (small_resnet, (3, 32, 32)),
        (lambda: Attention(), (16, 64)),
        (lambda: nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), (12, 64)),
        (lambda: nn.Sequential(nn.Conv1d(4, 8, 3), nn.GELU(), nn.Flatten(), nn.Linear(8 * 10, 3)), (4, 12)),
        (lambda: nn.Bilinear(6, 6, 5), None),
    ],
)
def test_flops_are_those_of_torch(model: Factory, shape: tuple[int, ...] | None) -> None:
    if shape is None:
        bilinear = model()
        model, shape = (lambda: Twice(bilinear)), (6,)
    made, x = model(), torch.randn(4, *shape)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        made(x).sum().backward()
    step = trace(model(), *shape)
    again = sum(2 * prod(each.shape) for each in of(step, "attention", "backward"))  # the kernel makes the scores again
    assert sum(each.flops * each.count for each in step.operators) - again == counter.get_total_flops()


class Twice(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x, x)  # type: ignore[no-any-return]


MODELS: list[Any] = [
    pytest.param(lambda: Decoder(), (8,), torch.int64, id="decoder"),
    pytest.param(small_resnet, (3, 32, 32), torch.float32, id="resnet"),
    pytest.param(lambda: Attention(), (16, 64), torch.float32, id="attention"),
]


@pytest.mark.parametrize("precision", first_short(["amp-bf16", "fp32", "bf16"]))
@pytest.mark.parametrize(("model", "shape", "dtype"), MODELS)
def test_the_step_at_twice_the_batch_is_the_step_scaled(
    model: Factory, shape: tuple[int, ...], dtype: torch.dtype, precision: str
) -> None:
    small, large = (
        trace(model(), *shape, batch=batch, dtype=dtype, precision=precision, optimizer="adamw") for batch in (4, 8)
    )
    scaled = as_asked(small, batch=8)

    def key(each: Operator) -> tuple[Any, ...]:  # of a reduction both sizes may grow, and one is told
        return each.phase, each.kind, each.name, each.dtype, each.shape[: 1 if each.kind == "reduction" else None]

    assert sorted(map(key, scaled.operators)) == sorted(map(key, large.operators))
    for ours, theirs in zip(sorted(scaled.operators, key=key), sorted(large.operators, key=key), strict=True):
        assert (ours.flops, ours.count, ours.launches) == (theirs.flops, theirs.count, theirs.launches)
        assert ours.bytes == pytest.approx(theirs.bytes, rel=1e-9)
    assert scaled.memory is not None
    assert large.memory is not None
    assert scaled.memory.saved_bytes == pytest.approx(large.memory.saved_bytes, rel=1e-6)


def test_updates() -> None:
    def update(optimizer: str) -> Operator:
        return only(trace(nn.Linear(10, 20), 10, optimizer=optimizer), "optimizer", "optimizer")

    size = 4 * (10 * 20 + 20)
    sgd, foreach, fused, single = (update(name) for name in ("sgd", "adamw", "adamw-fused", "adamw-single"))
    assert (sgd.name, sgd.shape, sgd.bytes, sgd.launches) == ("_foreach_sgd_", (220, 2), 3 * size, 1)
    assert (foreach.bytes, foreach.launches) == (20 * size, 8)
    assert (fused.name, fused.bytes, fused.launches) == ("_fused_adamw_", 7 * size, 1)
    assert single.launches == 2 * foreach.launches
    assert update("sgd-momentum").bytes == 8 * size


def test_muon_multiplies_matrices_and_leaves_embeddings_and_logits_to_adamw() -> None:
    """Of n x m with n >= m, five iterations of 2 (2 n m m + m m m) operations."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.up, self.head = nn.Embedding(100, 32), nn.Linear(32, 64), nn.Linear(64, 64, bias=False)
            self.logits = nn.Linear(64, 32)
            self.last = nn.Linear(32, 100, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.logits(self.head(self.up(self.table(x)))))  # type: ignore[no-any-return]

    step = trace(Model(), 16, dtype=torch.int64, optimizer="muon", precision="amp-bf16")
    products = of(step, "product", "optimizer")
    assert {each.dtype for each in products} == {"bf16"}
    expected = sum(10 * (2 * n * m * m + m**3) for n, m in ((64, 32), (64, 64), (64, 32)))
    assert sum(each.flops * each.count for each in products) == expected
    assert all(each.grows is None for each in products)
    (update,) = of(step, "optimizer", "optimizer")
    assert update.shape == (2 * 100 * 32 + 64 * 33 + 64 * 64 + 32 * 65, 7)
    asked = as_asked(trace(Model(), 16, dtype=torch.int64, optimizer="adamw"), batch=4, optimizer="muon")
    again = of(asked, "product", "optimizer")
    assert sum(each.flops * each.count for each in again) >= expected  # without a loss, all products are taken


def test_a_frozen_weight_between_trained_ones_passes_gradients_and_gets_none() -> None:
    # As LoRA has it: thin layers are trained, and the wide one between them is not.
    model = nn.Sequential(nn.Linear(10, 20), nn.Linear(20, 30), nn.Linear(30, 5))
    model[1].requires_grad_(False)
    step = trace(model, 10, optimizer="adamw")
    shapes = {each.shape for each in of(step, "product", "backward")}
    assert (1, 4, 20, 30) in shapes  # the gradient of its input
    assert (1, 30, 20, 4) not in shapes  # that of its weight
    assert only(step, "optimizer", "optimizer").shape[0] == 220 + 155
    assert step.memory is not None
    assert step.memory.trained_bytes == 4 * (220 + 155)


def test_autocast_copies_weights_and_keeps_sums_in_fp32() -> None:
    step = trace(nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.Softmax(-1)), 64, precision="amp-bf16")
    assert {each.dtype for each in of(step, "product")} == {"bf16"}
    assert {each.dtype for each in of(step, "normalization") + of(step, "softmax")} == {"fp32"}
    weight = next(each for each in of(step, "copy") if each.shape == (64 * 64,))
    assert (weight.bytes, weight.grows) == (6 * 64 * 64, None)
    assert step.memory is not None
    assert step.memory.saved_cast_bytes == 0  # the input needs no gradient, so its weight is not kept


def test_checkpointing_computes_blocks_again_in_backward() -> None:
    plain = trace(Decoder(), 8, dtype=torch.int64)
    again = trace(Decoder(), 8, dtype=torch.int64, checkpointing=True)
    flops = {
        (name, phase): sum(each.flops * each.count for each in step.operators if each.phase == phase)
        for name, step in (("plain", plain), ("again", again))
        for phase in PHASES
    }
    head = 2 * 4 * 8 * 32 * 100
    assert flops["again", "forward"] == flops["plain", "forward"]
    extra = flops["again", "backward"] - flops["plain", "backward"]
    last = 2 * 4 * 8 * 32 * 64 * 3  # what comes after the last saved tensor of a block is not computed again
    assert flops["plain", "forward"] - head - last <= extra <= flops["plain", "forward"] - head
    assert plain.memory is not None
    assert again.memory is not None
    assert again.memory.saved_bytes == pytest.approx(plain.memory.kept_bytes, rel=0.05)
    assert again.memory.layer_bytes == plain.memory.layer_bytes
    assert again.checkpointing


def test_there_is_nothing_to_checkpoint() -> None:
    with pytest.raises(UserError, match="no repeated blocks"):
        trace(nn.Linear(4, 4), 4, checkpointing=True)


def test_inference_is_forward_alone() -> None:
    step = trace(small_resnet(), 3, 32, 32, training=False, optimizer="adamw")
    assert {each.phase for each in step.operators} == {"forward"}
    assert (step.training, step.optimizer) == (False, "none")
    assert not [each for each in step.operators if "dropout" in each.name]


def test_compiled_steps_move_less() -> None:
    eager, compiled = (
        trace(nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Dropout(0.1), nn.LayerNorm(64)), 64, compiled=compiled)
        for compiled in (False, True)
    )
    moved, left = (sum(each.bytes * each.count for each in step.operators) for step in (eager, compiled))
    assert left == pytest.approx(sum((each.fused_bytes or 0) * each.count for each in eager.operators))
    assert left < 0.9 * moved
    assert compiled.compiled
    assert all(each.fused_bytes is None for each in compiled.operators)


def test_settings_that_do_not_exist() -> None:
    for settings in (StepSettings(precision="fp4"), StepSettings(optimizer="adamx"), StepSettings(optimizer="-fused")):
        with pytest.raises(UserError, match="not known"):
            settings.check()
    replace(StepSettings(), optimizer="sgd-momentum-fused").check()


@pytest.mark.parametrize("last", [False, True])
def test_where_channels_lie_is_told_and_changes_nothing_else(last: bool) -> None:
    model = nn.Conv2d(8, 16, 3)
    given: Any = model.to(memory_format=torch.channels_last) if last else model  # type: ignore[call-overload]
    step = trace(given, 8, 12, 12)
    assert step.channels_last is last
    assert replace(step, channels_last=False) == trace(nn.Conv2d(8, 16, 3), 8, 12, 12)


class Places(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        x = super().forward(x)
        return (x * x[:, :1] + x.transpose(1, 2) - x) * 2


def test_elementwise_operators_tell_whether_they_compute_places() -> None:
    """Those of broadcast and transposed operands do; those of equal ones and of numbers do not."""
    found = {each.name: each.count for each in of(trace(Places(8, 8), 8, 8), "elementwise")}
    assert found == {"mul_by_place": 1, "add_by_place": 1, "sub": 1, "mul": 1}
