"""How many kernels torch.compile would leave, beside what inductor (torch 2.13, CPU) made of the same modules."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ddlprof.operators.trace_step import Inputs, StepSettings, trace_step


class Feedforward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(256), nn.Linear(256, 1024), nn.Linear(1024, 256)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x)), approximate="tanh"))  # type: ignore[no-any-return]


class Written(nn.Module):
    """An activation of single operators, as GPT-2 has it in transformers; its first product is read by two of them."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(256, 1024), nn.Linear(1024, 256)

    def forward(self, x: Tensor) -> Tensor:
        y = self.up(x)
        y = 0.5 * y * (1.0 + torch.tanh(0.8 * (y + 0.045 * torch.pow(y, 3.0))))
        return self.down(y)  # type: ignore[no-any-return]


class Gated(nn.Module):
    """As in Llama, its norm written out."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(256))
        self.gate, self.up, self.down = (
            nn.Linear(*sizes, bias=False) for sizes in ((256, 704), (256, 704), (704, 256))
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))
        return x + self.down(F.silu(self.gate(y)) * self.up(y))  # type: ignore[no-any-return]


class Attention(nn.Module):
    """Written out, with a norm before it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(256), nn.Linear(256, 768), nn.Linear(256, 256)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = self.qkv(self.norm(x)).view(batch, length, 3, 4, 64).permute(2, 0, 3, 1, 4)
        weights = torch.softmax((q @ k.transpose(-1, -2)) * 0.125, -1)
        return x + self.out((weights @ v).transpose(1, 2).reshape(batch, length, 256))  # type: ignore[no-any-return]


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(64, 64, 3, padding=1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(64) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.norms[1](self.second(F.relu(self.norms[0](self.first(x))))) + x)


@pytest.mark.parametrize(
    ("model", "shape", "training", "kernels", "megabytes"),
    [
        (Feedforward, (128, 256), False, 3, 14.16),
        (Feedforward, (128, 256), True, 7, 38.82),
        (Gated, (128, 256), False, 3, 15.01),
        (Gated, (128, 256), True, 5, 39.92),
        (Attention, (128, 256), True, 13, 44.58),
        (Residual, (64, 32, 32), True, 14, 34.78),
    ],
)
def test_as_many_kernels_and_bytes_as_inductor_makes(
    model: Any, shape: tuple[int, ...], training: bool, kernels: int, megabytes: float
) -> None:
    """The two of the sum that backward begins with are in our count alone."""
    settings = StepSettings(batch=4, optimizer="none", training=training)
    step = trace_step(model(), lambda batch: Inputs([torch.empty((batch, *shape))], {}), settings)
    joined = [each for each in step.operators if each.kind not in ("product", "convolution")]
    launches = sum((each.fused_launches or 0) * each.count for each in joined)
    assert kernels - 1 <= launches <= kernels + 2
    moved = sum((each.fused_bytes or 0) * each.count for each in step.operators)
    assert moved == pytest.approx(1e6 * megabytes, rel=0.12)
    eager = sum(each.launches * each.count for each in joined)
    assert launches <= eager


def test_what_backward_can_compute_again_is_not_written() -> None:
    """Forward reads the product's result and writes that of the activation; backward reads the gradient and the
    product's result, and writes one gradient, whatever the activation is made of. Inductor has one kernel for each."""
    settings = StepSettings(batch=4, optimizer="none")
    step = trace_step(Written(), lambda batch: Inputs([torch.empty((batch, 128, 256))], {}), settings)
    whole = 4.0 * 4 * 128 * 1024
    elements = 4 * 128 * 1024
    for phase, copies in (("forward", 2), ("backward", 3)):
        mine = [each for each in step.operators if (each.kind, each.phase) == ("elementwise", phase)]
        wide = [each for each in mine if each.shape == (elements,)]
        assert sum((each.fused_bytes or 0) * each.count for each in wide) == pytest.approx(copies * whole, rel=0.02)
        assert sum(each.bytes * each.count for each in wide) > 2 * copies * whole


def test_what_a_product_reads_in_backward_is_written() -> None:
    """The activation's result goes into a product, and into its backward, and is not computed again."""
    settings = StepSettings(batch=4, optimizer="none")
    step = trace_step(Written(), lambda batch: Inputs([torch.empty((batch, 128, 256))], {}), settings)
    products = [each for each in step.operators if each.kind == "product"]
    assert all(each.fused_bytes == each.bytes for each in products)
