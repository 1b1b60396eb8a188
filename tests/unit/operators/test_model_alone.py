"""Models looked at without their data."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils.flop_counter import FlopCounterMode

from ddlprof.base.errors import UserError
from ddlprof.model.manifest import ModelFacts
from ddlprof.operators.model_alone import InputSpec, ModelAlone, build, parse_input
from ddlprof.operators.model_alone import look as look_at
from ddlprof.operators.trace_step import StepSettings


def look(model: nn.Module, inputs: list[InputSpec]) -> ModelAlone:
    return look_at(model, inputs, StepSettings(batch=2))


IMAGE = InputSpec((3, 224, 224), None)


class Bottleneck(nn.Module):
    """Three convolutions beside a shortcut."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *convolution(channels, width, 1), nn.ReLU(),
            *convolution(width, width, 3, stride), nn.ReLU(),
            *convolution(width, 4 * width, 1),
        )  # fmt: skip
        same = channels == 4 * width and stride == 1
        self.shortcut = nn.Identity() if same else nn.Sequential(*convolution(channels, 4 * width, 1, stride))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.shortcut(x))


def convolution(channels: int, outputs: int, size: int, stride: int = 1) -> list[nn.Module]:
    return [nn.Conv2d(channels, outputs, size, stride, size // 2, bias=False), nn.BatchNorm2d(outputs)]


def resnet50() -> nn.Module:
    """As torchvision builds it."""
    blocks: list[nn.Module] = []
    channels = 64
    for width, depth in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for number in range(depth):
            blocks.append(Bottleneck(channels, width, 2 if number == 0 and width > 64 else 1))
            channels = 4 * width
    stem = [*convolution(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


class Decoder(nn.Module):
    """Embedding, attention and a head that shares the embedding's weight; returns what Hugging Face's models do."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.linspace(0, 1, 3)[1].item()  # not possible on the meta device
        self.embedding = nn.Embedding(100, 32)
        self.qkv = nn.Linear(32, 96)
        self.head = nn.Linear(32, 100, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> dict[str, Any]:
        q, k, v = (self.qkv(self.embedding(tokens)) * self.scale).chunk(3, dim=-1)
        return {"logits": self.head(F.scaled_dot_product_attention(q, k, v, is_causal=True)), "tokens": tokens}


@pytest.mark.slow
def test_resnet50() -> None:
    found = look(build(resnet50), [IMAGE])
    facts = found.facts
    assert (facts.layers, facts.parameter_tensors, facts.parameters) == (54, 161, 25_557_032)
    assert facts.gradient_bytes == 4 * 25_557_032
    forward, backward = facts.forward_flops_per_sample, facts.backward_flops_per_sample
    assert forward is not None
    assert backward is not None
    assert forward == pytest.approx(2 * 4.09e9, rel=0.005)  # the published multiply-adds
    first = 2 * 112**2 * 49 * 3 * 64  # of the first convolution the input needs no gradient
    assert backward == 2 * forward - first
    assert found.notes == []


def test_nothing_is_allocated() -> None:
    model = build(lambda: nn.Sequential(*(nn.Linear(100_000, 100_000) for _ in range(100))))
    assert all(isinstance(p, FakeTensor) for p in model.parameters())
    assert look(model, [InputSpec((100_000,), None)]).facts.gradient_bytes == pytest.approx(4e12, rel=1e-4)


class Masked(nn.Module):
    """Attention as transformers has it: causal by itself, or by a mask that is made already."""

    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Linear(64, 64)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q = self.q(x).unflatten(-1, (2, 32)).transpose(1, 2)
        return F.scaled_dot_product_attention(q, q, q, mask, is_causal=mask is None)


@pytest.mark.parametrize(
    ("inputs", "kernel"), [(("9,64",), "flash_attention_causal"), (("9,64", "mask=1,9,9"), "efficient_attention")]
)
def test_the_mask_of_a_padded_batch_is_given_with_its_queries_and_keys(inputs: tuple[str, ...], kernel: str) -> None:
    step = look_at(Masked(), list(map(parse_input, inputs)), StepSettings(2, "bf16")).step
    assert step is not None
    names = [each.name.removeprefix("scaled_dot_product_") for each in step.operators if each.kind == "attention"]
    assert names == [kernel, f"{kernel}_backward"]


def test_a_model_that_cannot_be_built_without_data_is_built_with_it() -> None:
    found = look(build(Decoder), [InputSpec((12,), "int64")])
    assert found.facts == ModelFacts(
        name="Decoder", layers=3, parameter_tensors=3, parameters=100 * 32 + 33 * 96,
        gradient_bytes=4 * (100 * 32 + 33 * 96), compiled=False, channels_last=False,
        forward_flops_per_sample=found.facts.forward_flops_per_sample,
        backward_flops_per_sample=found.facts.backward_flops_per_sample,
    )  # fmt: skip
    assert found.notes == []


def test_operations_are_those_of_torch() -> None:
    model, tokens = Decoder(), torch.zeros(4, 12, dtype=torch.int64)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        logits = model(tokens)["logits"]
        forward = counter.get_total_flops()
        logits.sum().backward()
    facts = look(build(Decoder), [InputSpec((12,), "int64")]).facts
    assert facts.forward_flops_per_sample == forward / 4
    assert facts.backward_flops_per_sample == (counter.get_total_flops() - forward) / 4


def test_without_an_input_operations_are_not_known() -> None:
    found = look(build(resnet50), [])
    assert found.facts.layers == 54
    assert found.facts.forward_flops_per_sample is None
    assert "--input 3,224,224" in found.notes[0]


class Tied(nn.Module):
    """A table of tokens that is its head's weight, too."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(100, 16, dtype=dtype), nn.Linear(16, 100, bias=False, dtype=dtype)
        self.head.weight = self.table.weight

    def forward(self, tokens: Tensor) -> Any:
        return self.head(self.table(tokens))


@pytest.mark.parametrize(
    ("held", "asked", "precision", "size"),
    [
        (torch.float32, "fp32", "fp32", 4),
        (torch.float32, "amp-bf16", "amp-bf16", 4),
        (torch.float32, "bf16", "bf16", 2),
        (torch.float32, "fp16", "fp16", 2),
        (torch.bfloat16, "fp32", "bf16", 2),  # nothing converts it
        (torch.bfloat16, "amp-bf16", "bf16", 2),
    ],
)
@pytest.mark.parametrize("inputs", [[], [InputSpec((8,), "int64")]])
def test_gradients_have_the_type_that_is_trained(
    held: torch.dtype, asked: str, precision: str, size: int, inputs: list[InputSpec]
) -> None:
    found = look_at(Tied(held), inputs, StepSettings(batch=2, precision=asked))
    assert (found.facts.parameter_tensors, found.facts.gradient_bytes) == (1, size * 1600)
    if inputs:
        assert found.step is not None
        assert found.step.memory is not None
        assert (found.step.precision, found.step.memory.trained_bytes) == (precision, size * 1600)


def test_lazy_layers_are_known_after_their_input() -> None:
    def lazy() -> nn.Module:
        return nn.Sequential(nn.LazyLinear(5), nn.Linear(5, 2))

    assert look(build(lazy), []).facts.layers is None
    assert look(build(lazy), [InputSpec((7,), None)]).facts.layers == 2


class Product(nn.Module):
    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return a @ b


def test_several_inputs() -> None:
    found = look(Product(), [InputSpec((3, 4), None), InputSpec((4, 5), None)])
    assert found.facts.forward_flops_per_sample == 2 * 3 * 4 * 5
    assert found.facts.layers == 0


class NoGradient(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).detach()  # type: ignore[no-any-return]


def test_backward_is_taken_for_twice_forward_where_it_fails() -> None:
    found = look(build(NoGradient), [InputSpec((4,), None)])
    assert (found.facts.forward_flops_per_sample, found.facts.backward_flops_per_sample) == (32, 64)
    assert "twice forward" in found.notes[0]


def test_errors_are_the_factorys_own() -> None:
    def fails() -> nn.Module:
        raise LookupError("no such size")

    with pytest.raises(LookupError, match="no such size") as error:
        build(fails)
    assert error.value.__context__ is None


def test_no_mode_stays_behind_after_an_error() -> None:
    with pytest.raises(RuntimeError):
        look(build(lambda: nn.Linear(4, 4)), [InputSpec((5,), None)])
    assert not _get_current_dispatch_mode_stack()


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("3,224,224", InputSpec((3, 224, 224), None)),
        ("int64:512", InputSpec((512,), "int64")),
        ("bfloat16:8,2", InputSpec((8, 2), "bfloat16")),
        ("labels=int64:8", InputSpec((8,), "int64", "labels")),
        ("x=3,4", InputSpec((3, 4), None, "x")),
        ("int64:", InputSpec((), "int64")),
    ],
)
def test_inputs(text: str, spec: InputSpec) -> None:
    assert parse_input(text) == spec


@pytest.mark.parametrize("text", ["", "3x224", "3,,4", "-3", "int64", "integer:3", "nn:3", ":3", "x=", "3=3", "x==3"])
def test_what_is_no_input(text: str) -> None:
    with pytest.raises(UserError, match="--input"):
        parse_input(text)
