"""Ten networks of different kinds that return their loss, with the shape of one sample: to predict and to measure.

Without any package but torch. `REHEARSAL`: small ones, which only have to run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from models import Block, Gpt, resnet
from torch import nn
from torch.nn import functional

TINY = bool(os.environ.get("GPU_REHEARSAL"))


class Entry(NamedTuple):
    """A network: what makes it, the shape of one sample as `ddlprof features --input` takes it, and two batches."""

    make: Callable[[], nn.Module]
    sample: str
    small: int
    large: int


class Loss(nn.Module):
    """A network with a loss that needs no labels: the mean square of what it says."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: torch.Tensor) -> Any:
        said = self.net(x)
        return (said[0] if isinstance(said, tuple) else said).float().square().mean()


class TokenLoss(nn.Module):
    """A network that says the next token, with cross-entropy."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, tokens: torch.Tensor) -> Any:
        return functional.cross_entropy(self.net(tokens).flatten(0, 1).float(), tokens.flatten())


class Patches(nn.Module):
    """A vision transformer: patches of 16 x 16, then blocks as those of the GPT."""

    def __init__(self, layers: int, width: int, heads: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)), nn.LayerNorm(width))
        self.head = nn.Linear(width, 1000)

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(self.blocks(self.patches(x).flatten(2).transpose(1, 2)).mean(1))


class Recurrent(nn.Module):
    """A language model of LSTMs."""

    def __init__(self, width: int, layers: int, words: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.lstm = nn.LSTM(width, width, layers, batch_first=True)
        self.head = nn.Linear(width, words)

    def forward(self, tokens: torch.Tensor) -> Any:
        return self.head(self.lstm(self.words(tokens))[0])


class Unet(nn.Module):
    """Convolutions down to a quarter of the side and up again, with what was left on the way."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.down = nn.ModuleList((_two(3, width), _two(width, 2 * width), _two(2 * width, 4 * width)))
        self.up = nn.ModuleList((_two(6 * width, 2 * width), _two(3 * width, width)))
        self.out = nn.Conv2d(width, 2, 1)

    def forward(self, x: torch.Tensor) -> Any:
        first = self.down[0](x)
        second = self.down[1](functional.max_pool2d(first, 2))
        third = self.down[2](functional.max_pool2d(second, 2))
        up = self.up[0](torch.cat((functional.interpolate(third, scale_factor=2.0), second), 1))
        return self.out(self.up[1](torch.cat((functional.interpolate(up, scale_factor=2.0), first), 1)))


def _two(inputs: int, outputs: int) -> nn.Module:
    layers: list[nn.Module] = []
    for before in (inputs, outputs):
        layers += [nn.Conv2d(before, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers)


def _perceptron(width: int, layers: int) -> nn.Module:
    return nn.Sequential(*(each for _ in range(layers) for each in (nn.Linear(width, width), nn.ReLU())))


def _images(blocks: tuple[int, ...], width: int = 64) -> nn.Module:
    return Loss(resnet((1, 1, 1, 1), 8, 10) if TINY else resnet(blocks, width))


def _gpt(layers: int, width: int, length: int) -> nn.Module:
    return TokenLoss(Gpt(1, 16, 2, 32, 8) if TINY else Gpt(layers, width, width // 64, length=length))


_IMAGE = "float32:3,32,32" if TINY else "float32:3,224,224"
_SMALL_IMAGE = "float32:3,32,32" if TINY else "float32:3,128,128"
_ROW, _SHORT_ROW = ("float32:16",) * 2 if TINY else ("float32:4096", "float32:64")


def _tokens(length: int) -> str:
    return "int64:8" if TINY else f"int64:{length}"


MODELS: Mapping[str, Entry] = {
    "resnet26": Entry(lambda: _images((2, 2, 2, 2)), _IMAGE, 8, 128),
    "resnet50": Entry(lambda: _images((3, 4, 6, 3)), _IMAGE, 8, 128),
    "wide_resnet50": Entry(lambda: _images((3, 4, 6, 3), 128), _IMAGE, 8, 64),
    "vit": Entry(lambda: Loss(Patches(1, 16, 2) if TINY else Patches(12, 768, 12)), _IMAGE, 8, 128),
    "unet": Entry(lambda: Loss(Unet(4 if TINY else 64)), _SMALL_IMAGE, 4, 64),
    "gpt_small": Entry(lambda: _gpt(12, 768, 512), _tokens(512), 2, 16),
    "gpt_medium": Entry(lambda: _gpt(24, 1024, 1024), _tokens(1024), 1, 8),
    "lstm": Entry(lambda: TokenLoss(Recurrent(*((16, 1, 32) if TINY else (1024, 2, 10_000)))), _tokens(64), 16, 256),
    "perceptron": Entry(lambda: Loss(_perceptron(16 if TINY else 4096, 2 if TINY else 8)), _ROW, 64, 4096),
    "launches": Entry(lambda: Loss(_perceptron(16 if TINY else 64, 2 if TINY else 100)), _SHORT_ROW, 64, 1024),
}  # fmt: skip


def batch_of(name: str, batch: int, device: str) -> torch.Tensor:
    """Random samples; tokens below 32."""
    dtype, _, sizes = MODELS[name].sample.partition(":")
    shape = (batch, *map(int, sizes.split(",")))
    made = torch.randint(32, shape) if dtype == "int64" else torch.randn(shape)
    return made.to(device)


def __getattr__(name: str) -> Any:
    """Each network's factory by its name, for `ddlprof features ten_models:resnet50`."""
    if name in MODELS:
        return MODELS[name].make
    raise AttributeError(name)
