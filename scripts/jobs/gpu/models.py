"""The networks of the first experiments on a GPU, without any package but torch."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

Batch = tuple[torch.Tensor, torch.Tensor]


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions beside a shortcut; the stride is that of the 3x3, as in ResNet v1.5."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.body = nn.Sequential(
            *_convolution(inputs, width, 1), nn.ReLU(inplace=True),
            *_convolution(width, width, 3, stride), nn.ReLU(inplace=True),
            *_convolution(width, outputs, 1),
        )  # fmt: skip
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else nn.Sequential(*_convolution(inputs, outputs, 1, stride))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.body(x) + self.shortcut(x), inplace=True)


def _convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> tuple[nn.Module, nn.Module]:
    convolution = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)
    return convolution, nn.BatchNorm2d(outputs)


def resnet(blocks: tuple[int, ...] = (3, 4, 6, 3), width: int = 64, classes: int = 1000) -> nn.Module:
    """ResNet-50 by default: 25.6 million parameters."""
    layers: list[nn.Module] = [
        *_convolution(3, width, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, padding=1),
    ]  # fmt: skip
    inputs = width
    for stage, count in enumerate(blocks):
        for number in range(count):
            layers.append(Bottleneck(inputs, width << stage, 2 if stage and number == 0 else 1))
            inputs = 4 * (width << stage)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


class Block(nn.Module):
    """Causal self-attention and two layers, each with a norm before it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).transpose(1, 3).unbind(2)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.out(mixed)
        return x + self.mlp(self.norms[1](x))  # type: ignore[no-any-return]


class Gpt(nn.Module):
    """A small GPT that returns its loss."""

    def __init__(self, layers: int = 12, width: int = 768, heads: int = 12, words: int = 50304, length: int = 512):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)), nn.LayerNorm(width))
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.blocks(self.words(tokens) + self.places(places)))  # type: ignore[no-any-return]


def toy(layers: int = 33, width: int = 64) -> nn.Module:
    """About 200 kernels a step, with backward: the device waits for the host."""
    return nn.Sequential(*(layer for _ in range(layers) for layer in (nn.Linear(width, width), nn.ReLU())))


def make(
    name: str, tiny: bool, device: str, layers: int = 33, width: int = 64
) -> tuple[nn.Module, Callable[[], Batch]]:
    """A network on the device, and what makes a batch there. `layers` and `width`: of the toy."""
    model: nn.Module
    if name == "resnet50":
        size, rows = (32, 2) if tiny else (224, 64)
        model = resnet((1, 1, 1, 1), 8, 10) if tiny else resnet()
        images, labels = torch.randn(rows, 3, size, size), torch.randint(10, (rows,))
    elif name == "gpt":
        length, rows = (8, 2) if tiny else (512, 8)
        model = Gpt(1, 16, 2, 32, length) if tiny else Gpt(length=length)
        images = torch.randint(32, (rows, length))
        labels = images.roll(-1, 1)
    else:
        layers, width = (min(layers, 4), min(width, 64)) if tiny else (layers, width)
        model = toy(layers, width)
        images, labels = torch.randn(64, width), torch.randint(10, (64,))
    batch = images.to(device), labels.to(device)
    return model.to(device), lambda: batch


def loss_of(model: nn.Module, batch: Batch) -> torch.Tensor:
    """Cross-entropy of whatever the network says of the last dimension."""
    said = model(batch[0])
    return F.cross_entropy(said.flatten(0, -2).float(), batch[1].flatten())
