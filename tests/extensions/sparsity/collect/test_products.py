"""Counts against counting by hand: every single multiply-add of a product is looked at, with no formula in between."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from ddlprof.extensions.sparsity.collect.layers import call_of, needs_of
from ddlprof.extensions.sparsity.collect.products import LayerCall
from ddlprof.extensions.sparsity.collect.zeros import nonzeros, numbers


def sparse(*shape: int, zeros: float) -> torch.Tensor:
    return torch.randn(shape) * (torch.rand(shape) >= zeros)


def number(value: Any) -> int:
    return round(float(value))


def by_autograd(layer: nn.Module, x: torch.Tensor, dy: torch.Tensor, known: bool) -> dict[str, int]:
    """Runs the layer itself on ones and zeros: a sum of products of ones is a count of products."""
    ones = {name: torch.ones_like(p) for name, p in layer.named_parameters()}
    if "bias" in ones:
        ones["bias"].zero_()

    def forward(value: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.func.functional_call(layer, ones, (value,))
        return result

    full, filled = torch.ones_like(x), (x != 0).float()
    products: Any = torch.func.vjp(forward, full)
    y, back = products
    (data,) = back((dy != 0).float())

    def of_weight(weight: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.func.functional_call(layer, {**ones, "weight": weight}, (filled,))
        return result

    (weight,) = torch.func.vjp(of_weight, ones["weight"])[1]((dy != 0).float())
    return {
        "forward_macs": number(y.sum()),
        "forward_needed": number(forward(filled).sum()),
        "data_needed": number((data * filled).sum() if known else data.sum()),
        "weight_needed": number(weight.sum()),
        "input_zeros": int((x == 0).sum()),
        "gradient_zeros": int((dy == 0).sum()),
    }


def counted(layer: nn.Module, x: torch.Tensor, dy: torch.Tensor, known: bool) -> dict[str, int]:
    x = x.clone().requires_grad_()
    call = call_of(layer, x.shape, layer(x).shape, needs_of(layer, x, known))
    return as_numbers(call, x, dy)


def as_numbers(call: LayerCall, x: torch.Tensor, dy: torch.Tensor | None) -> dict[str, int]:
    looks = call.look_at_input(x, True), call.look_at_gradient(dy, True)
    values = call.products(*looks, with_forward=True)
    return dict(zip(values, numbers(list(values.values())), strict=True))


LAYERS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(8, 5), (6, 8)),
    "linear of sequences": (lambda: nn.Linear(8, 5, bias=False), (3, 4, 8)),
    "conv1d": (lambda: nn.Conv1d(3, 4, 3, padding=1), (2, 3, 9)),
    "conv2d": (lambda: nn.Conv2d(4, 6, 3, stride=2, padding=1), (2, 4, 7, 6)),
    "conv2d in groups": (lambda: nn.Conv2d(4, 6, (3, 2), groups=2, padding=(1, 0)), (2, 4, 5, 6)),
    "conv2d dilated": (lambda: nn.Conv2d(2, 3, 3, dilation=2, padding=2), (2, 2, 8, 8)),
    "conv2d same": (lambda: nn.Conv2d(2, 3, (5, 3), padding="same"), (2, 2, 6, 6)),
    "conv2d valid": (lambda: nn.Conv2d(2, 3, 3, padding="valid"), (2, 2, 6, 6)),
    "conv2d circular": (lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"), (2, 2, 6, 6)),
    "conv2d without batch": (lambda: nn.Conv2d(2, 3, 1), (2, 6, 6)),
    "conv3d": (lambda: nn.Conv3d(2, 3, 2, stride=2, padding=1), (1, 2, 4, 5, 4)),
    "conv2d of many channels": (lambda: nn.Conv2d(520, 2, 3, padding=1), (1, 520, 3, 3)),
    "conv2d of a prime number of channels": (lambda: nn.Conv2d(263, 2, 1), (2, 263, 3, 5)),
    "depthwise": (lambda: nn.Conv2d(8, 8, 3, groups=8, padding=1), (2, 8, 4, 4)),
    "linear, wide": (lambda: nn.Linear(3000, 3), (4, 3000)),
    "linear of a prime number of features": (lambda: nn.Linear(521, 3), (4, 521)),
    "transposed 1d": (lambda: nn.ConvTranspose1d(3, 4, 4, stride=2, padding=1), (2, 3, 5)),
    "transposed 2d": (lambda: nn.ConvTranspose2d(4, 6, 3, 2, padding=1, output_padding=1, groups=2), (2, 4, 4, 5)),
    "transposed 3d": (lambda: nn.ConvTranspose3d(2, 2, 3, dilation=2), (1, 2, 3, 3, 3)),
}  # fmt: skip


@pytest.mark.parametrize("known", [False, True], ids=["dense mask", "known mask"])
@pytest.mark.parametrize("name", LAYERS)
def test_counts_are_those_of_the_layer_itself_on_ones_and_zeros(name: str, known: bool) -> None:
    torch.manual_seed(0)
    make, shape = LAYERS[name]
    layer, x = make(), sparse(*shape, zeros=0.5)
    dy = sparse(*layer(x).shape, zeros=0.3)
    expected = by_autograd(layer, x, dy, known)
    found = counted(layer, x, dy, known)
    assert {key: found[key] for key in expected} == expected
    assert found["data_macs"] == found["weight_macs"] == found["forward_macs"]


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[nn.Module, torch.Tensor]:
    dimensions, groups = draw(st.integers(1, 2)), draw(st.sampled_from([1, 2, 3]))
    each = st.tuples(*[st.integers(1, 3)] * dimensions)
    kernel, stride, dilation = draw(each), draw(each), draw(each)
    padding = tuple(draw(st.integers(0, size)) for size in kernel)
    channels = [groups * draw(st.sampled_from([1, 2, 8])) for _ in range(2)]
    sizes = [draw(st.integers(1 + wide * (size - 1), 12)) for wide, size in zip(dilation, kernel, strict=True)]
    torch.manual_seed(draw(st.integers(0, 2**31)))
    x = sparse(draw(st.integers(1, 3)), channels[0], *sizes, zeros=draw(st.sampled_from([0, 0.5, 0.9, 1])))
    if draw(st.booleans()) and dimensions == 2:
        x = x.to(memory_format=torch.channels_last)
    kind: Any = (nn.Conv1d, nn.Conv2d)[dimensions - 1]
    if draw(st.booleans()) and all(  # its output has at least one place
        (places - 1) * step + wide * (size - 1) >= 2 * more
        for places, step, wide, size, more in zip(sizes, stride, dilation, kernel, padding, strict=True)
    ):
        kind = (nn.ConvTranspose1d, nn.ConvTranspose2d)[dimensions - 1]
    layer = kind(*channels, kernel, stride=stride, dilation=dilation, padding=padding, groups=groups)
    return layer, x


@settings(max_examples=60, deadline=None)
@given(convolutions(), st.booleans())
def test_a_convolution_of_any_form_is_counted_as_on_ones_and_zeros(
    case: tuple[nn.Module, torch.Tensor], known: bool
) -> None:
    layer, x = case
    dy = sparse(*layer(x).shape, zeros=0.4)
    if x.dim() == 4 and not x.is_contiguous():
        dy = dy.to(memory_format=torch.channels_last)
    expected = by_autograd(layer, x, dy, known)
    found = counted(layer, x, dy, known)
    assert {key: found[key] for key in expected} == expected


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 700), st.lists(st.integers(1, 9), max_size=2), st.data())
def test_nonzeros_by_sample_and_place(
    samples: int, groups: int, features: int, places: list[int], data: st.DataObject
) -> None:
    torch.manual_seed(data.draw(st.integers(0, 2**31)))
    x = sparse(samples, groups * features, *places, zeros=data.draw(st.sampled_from([0, 0.5, 1])))
    x = x.to(data.draw(st.sampled_from([torch.float32, torch.bfloat16])))
    if data.draw(st.booleans()):
        x = x.transpose(1, -1).contiguous().transpose(1, -1)  # channels last
    counts = nonzeros(x, groups).whole()
    assert torch.equal(counts.long(), (x != 0).unflatten(1, (groups, features)).sum(2))


def test_a_tensor_in_parts_is_counted_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    layer, x = nn.Conv2d(4, 6, 3, padding=1), sparse(7, 4, 8, 8, zeros=0.5)
    dy = sparse(7, 6, 8, 8, zeros=0.5)
    whole = counted(layer, x, dy, known=True)
    monkeypatch.setattr("ddlprof.extensions.sparsity.collect.zeros._AT_ONCE", 3 * 4 * 64)
    assert counted(layer, x, dy, known=True) == whole


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 5), st.integers(1, 6), st.integers(1, 6), st.floats(0, 1), st.integers(0, 2**31))
def test_a_linear_layer_counted_multiply_add_by_multiply_add(
    rows: int, inputs: int, outputs: int, zeros: float, seed: int
) -> None:
    torch.manual_seed(seed)
    x, dy = sparse(rows, inputs, zeros=zeros), sparse(rows, outputs, zeros=zeros)
    found = counted(nn.Linear(inputs, outputs), x, dy, known=True)
    pairs = list(itertools.product(range(rows), range(inputs), range(outputs)))
    assert found["forward_needed"] == sum(bool(x[n, i]) for n, i, _ in pairs)
    assert found["weight_needed"] == sum(bool(x[n, i]) and bool(dy[n, o]) for n, i, o in pairs)
    assert found["data_needed"] == found["weight_needed"]
    assert found["forward_needed"] <= found["forward_structured"] <= found["forward_macs"]
    assert found["weight_needed"] <= found["weight_structured"] <= found["weight_macs"]


@pytest.mark.parametrize("layer", [nn.LSTM(4, 3, 2, batch_first=True), nn.GRU(4, 3, bidirectional=True)])
def test_of_recurrent_layers_the_input_of_the_first_is_counted(layer: Any) -> None:
    x = sparse(5, 6, 4, zeros=0.5).requires_grad_()
    call = call_of(layer, x.shape, layer(x)[0].shape, needs_of(layer, x, True))
    found = as_numbers(call, x, None)
    weights = dict(layer.named_parameters())
    steps = 5 * 6
    assert found["forward_macs"] == steps * sum(p.numel() for name, p in weights.items() if "weight" in name)
    first = sum(p.shape[0] for name, p in weights.items() if name.startswith("weight_ih_l0"))
    assert found["forward_macs"] - found["forward_needed"] == int((x == 0).sum()) * first
    assert found["data_needed"] == found["weight_needed"] == found["forward_needed"]


@pytest.mark.parametrize("kind", [torch.float64, torch.bfloat16, torch.float16])
def test_other_precisions_are_counted_exactly_too(kind: torch.dtype) -> None:
    torch.manual_seed(0)
    x = sparse(300, 600, zeros=0.4).to(kind)
    layer = nn.Linear(600, 2).to(kind)
    assert counted(layer, x, torch.ones(300, 2, dtype=kind), known=False)["input_zeros"] == int((x == 0).sum())
