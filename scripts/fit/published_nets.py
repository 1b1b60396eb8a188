"""The networks of the published measurements, as small definitions in torch: for their operators, not to be trained.

Sizes follow the definitions that the sources ran. Layers are written as those programs wrote them (attention of
separate products, as before fused kernels), because this decides which operators a step consists of.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

Block: TypeAlias = Callable[..., nn.Module]


class Residual(nn.Module):
    """A residual block of any body; the activation after the sum is optional."""

    def __init__(self, body: nn.Module, shortcut: nn.Module | None, activate: bool = True) -> None:
        super().__init__()
        self.body, self.shortcut, self.activate = body, shortcut, activate

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x)
        y = y + (x if self.shortcut is None else self.shortcut(x))
        return functional.relu(y) if self.activate else y


def conv(inner: int, outer: int, kernel: int, stride: int = 1, bias: bool = False, groups: int = 1) -> nn.Conv2d:
    """A convolution that keeps the size of the image, apart from its stride."""
    return nn.Conv2d(inner, outer, kernel, stride, kernel // 2, bias=bias, groups=groups)


def conv_norm(inner: int, outer: int, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    """A convolution and its normalisation."""
    return [conv(inner, outer, kernel, stride, groups=groups), nn.BatchNorm2d(outer)]


def bottleneck(inner: int, width: int, stride: int, groups: int = 1, expand: int = 4) -> nn.Module:
    """ResNet-50's block; the stride is in its middle (v1.5). ResNeXt has groups."""
    outer = width * expand
    body = nn.Sequential(
        *conv_norm(inner, width, 1), nn.ReLU(), *conv_norm(width, width, 3, stride, groups), nn.ReLU(),
        *conv_norm(width, outer, 1),
    )  # fmt: skip
    same = stride == 1 and inner == outer
    return Residual(body, None if same else nn.Sequential(*conv_norm(inner, outer, 1, stride)))


def basic(inner: int, width: int, stride: int) -> nn.Module:
    """ResNet-18's block."""
    body = nn.Sequential(*conv_norm(inner, width, 3, stride), nn.ReLU(), *conv_norm(width, width, 3))
    same = stride == 1 and inner == width
    return Residual(body, None if same else nn.Sequential(*conv_norm(inner, width, 1, stride)))


def stem() -> list[nn.Module]:
    """The first layers of a ResNet for large images."""
    return [*conv_norm(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]


def resnet50(classes: int = 1000, width: int = 1, groups: int = 1) -> nn.Module:
    """ResNet-50, or ResNeXt where there are groups (width 2: 4 channels in each of 32)."""
    layers, inner = stem(), 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        middle = 64 * 2**stage
        for i in range(blocks):
            stride = 2 if stage and not i else 1
            layers.append(bottleneck(inner, middle * width, stride, groups, 4 // width))
            inner = middle * 4
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inner, classes))


def resnext101() -> nn.Module:
    """ResNeXt-101, 32 groups of 4 channels."""
    layers, inner = stem(), 64
    for stage, blocks in enumerate((3, 4, 23, 3)):
        middle = 128 * 2**stage
        for i in range(blocks):
            layers.append(bottleneck(inner, middle, 2 if stage and not i else 1, 32, 2))
            inner = middle * 2
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inner, 1000))


def resnet18_cifar(classes: int = 10) -> nn.Module:
    """ResNet-18 for images of 32 pixels: no stride and no pooling at the beginning."""
    layers: list[nn.Module] = [*conv_norm(3, 64, 3), nn.ReLU()]
    inner = 64
    for stage in range(4):
        for i in range(2):
            layers.append(basic(inner, 64 * 2**stage, 2 if stage and not i else 1))
            inner = 64 * 2**stage
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inner, classes))


def vgg(depths: tuple[int, ...], classes: int, pixels: int, dropout: bool) -> nn.Module:
    """VGG with so many convolutions in each of five stages."""
    layers: list[nn.Module] = []
    inner = 3
    for depth, outer in zip(depths, (64, 128, 256, 512, 512), strict=True):
        for _ in range(depth):
            layers += [conv(inner, outer, 3, bias=True), nn.ReLU()]
            inner = outer
        layers.append(nn.MaxPool2d(2))
    layers += [nn.Flatten(), nn.Linear(512 * (pixels // 32) ** 2, 4096), nn.ReLU()]
    layers += [nn.Dropout()] * dropout + [nn.Linear(4096, 4096), nn.ReLU()] + [nn.Dropout()] * dropout
    return nn.Sequential(*layers, nn.Linear(4096, classes))


def alexnet(classes: int = 1000) -> nn.Module:
    """AlexNet for 224 pixels, in one tower."""
    return nn.Sequential(
        nn.Conv2d(3, 64, 11, 4, 2), nn.ReLU(), nn.MaxPool2d(3, 2), nn.Conv2d(64, 192, 5, padding=2), nn.ReLU(),
        nn.MaxPool2d(3, 2), conv(192, 384, 3, bias=True), nn.ReLU(), conv(384, 256, 3, bias=True), nn.ReLU(),
        conv(256, 256, 3, bias=True), nn.ReLU(), nn.MaxPool2d(3, 2), nn.Flatten(), nn.Linear(256 * 36, 4096),
        nn.ReLU(), nn.Dropout(), nn.Linear(4096, 4096), nn.ReLU(), nn.Dropout(), nn.Linear(4096, classes),
    )  # fmt: skip


class Attention(nn.Module):
    """Attention of separate products and a softmax; `heads` of equal width."""

    def __init__(self, width: int, heads: int, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out, self.dropout = nn.Linear(width, width), nn.Dropout(0.1)

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        memory = x if memory is None else memory

        def split(y: Tensor) -> Tensor:
            return y.view(y.shape[0], y.shape[1], self.heads, -1).transpose(1, 2)

        query, key, value = split(self.query(x)), split(self.key(memory)), split(self.value(memory))
        scores = query @ key.transpose(2, 3) / math.sqrt(query.shape[-1])
        if self.causal:
            length = scores.shape[-1]
            scores = scores + torch.zeros(length, length, dtype=scores.dtype, device=scores.device)
        weights = self.dropout(functional.softmax(scores, -1))
        return torch.as_tensor(self.out((weights @ value).transpose(1, 2).reshape(x.shape)))


class Layer(nn.Module):
    """A layer of a transformer, with attention to `memory` too where it is a decoder's."""

    def __init__(
        self, width: int, heads: int, inner: int, causal: bool = False, cross: bool = False, act: Block = nn.GELU
    ) -> None:
        super().__init__()
        self.attention = Attention(width, heads, causal)
        self.cross = Attention(width, heads) if cross else None
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 + cross))
        self.mlp = nn.Sequential(nn.Linear(width, inner), act(), nn.Linear(inner, width))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        x = self.norms[0](x + self.dropout(self.attention(x)))
        if self.cross is not None:
            x = self.norms[2](x + self.dropout(self.cross(x, memory)))
        return torch.as_tensor(self.norms[1](x + self.dropout(self.mlp(x))))


class Encoder(nn.Module):
    """Embeddings, layers and a head: BERT (`head` "mlm", "span" or "class") and GPT ("lm")."""

    def __init__(self, width: int, layers: int, heads: int, vocabulary: int, length: int, head: str) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.types = nn.Embedding(2, width) if head != "lm" else None
        self.norm, self.dropout, self.head = nn.LayerNorm(width), nn.Dropout(0.1), head
        self.layers = nn.ModuleList(Layer(width, heads, 4 * width, causal=head == "lm") for _ in range(layers))
        self.transform = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))
        outputs = {"mlm": vocabulary, "lm": vocabulary, "span": 2, "class": 2}[head]
        self.out = nn.Linear(width, outputs, bias=head != "lm")
        if outputs == vocabulary:
            self.out.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        x = self.words(tokens) + self.places(places)
        if self.types is not None:
            x = self.norm(x + self.types(torch.zeros_like(tokens)))
        x = self.dropout(x)
        for layer in self.layers:
            x = layer(x)
        if self.head == "mlm":
            x = self.transform(x)
        return torch.as_tensor(self.out(x[:, 0] if self.head == "class" else x))


class Translator(nn.Module):
    """An encoder and a decoder over one vocabulary: the base transformer, BART."""

    def __init__(self, width: int, layers: int, heads: int, inner: int, vocabulary: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, width), nn.Embedding(1024, width)
        self.encoder = nn.ModuleList(Layer(width, heads, inner, act=nn.ReLU) for _ in range(layers))
        self.decoder = nn.ModuleList(Layer(width, heads, inner, True, True, nn.ReLU) for _ in range(layers))
        self.out = nn.Linear(width, vocabulary, bias=False)
        self.out.weight = self.words.weight

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        def embedded(tokens: Tensor) -> Tensor:
            places = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
            return torch.as_tensor(self.words(tokens) + self.places(places))

        memory = embedded(source)
        for layer in self.encoder:
            memory = layer(memory)
        x = embedded(target)
        for layer in self.decoder:
            x = layer(x, memory)
        return torch.as_tensor(self.out(x))


class XlLayer(nn.Module):
    """A layer of Transformer-XL: attention over the segment and its memory, with relative positions."""

    def __init__(self, width: int, heads: int, head_width: int, inner: int) -> None:
        super().__init__()
        self.heads, self.head_width = heads, head_width
        self.qkv, self.relative = (nn.Linear(width, n * heads * head_width, bias=False) for n in (3, 1))
        self.out = nn.Linear(heads * head_width, width, bias=False)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.mlp = nn.Sequential(nn.Linear(width, inner), nn.ReLU(), nn.Dropout(0.1), nn.Linear(inner, width))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor, memory: Tensor, places: Tensor) -> Tensor:
        both = torch.cat([memory, x], 1)
        query, key, value = self.qkv(both).chunk(3, -1)

        def split(y: Tensor) -> Tensor:
            return y.reshape(y.shape[0], y.shape[1], self.heads, self.head_width).transpose(1, 2)

        query, key, value = split(query[:, -x.shape[1] :]), split(key), split(value)
        relative = split(self.relative(places)[None])
        scores = query @ key.transpose(2, 3)
        shifted = (query @ relative.transpose(2, 3)).roll(1, -1)
        weights = self.dropout(functional.softmax((scores + shifted) * 0.1, -1))
        y = (weights @ value).transpose(1, 2).reshape(x.shape[0], x.shape[1], -1)
        x = self.norms[0](x + self.dropout(self.out(y)))
        return torch.as_tensor(self.norms[1](x + self.dropout(self.mlp(x))))


class TransformerXl(nn.Module):
    """Transformer-XL on WikiText-103; the adaptive softmax as its head and the clusters at their shares."""

    def __init__(self, width: int, layers: int, heads: int, head_width: int, inner: int, length: int, memory: int):
        super().__init__()
        self.words = nn.Embedding(267735, width)
        self.layers = nn.ModuleList(XlLayer(width, heads, head_width, inner) for _ in range(layers))
        self.head, self.memory, self.length = nn.Linear(width, 20003, bias=False), memory, length
        self.tail = nn.Sequential(nn.Linear(width, width // 4, bias=False), nn.Linear(width // 4, 20000, bias=False))

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        x = self.words(tokens)
        memory = x.new_zeros(x.shape[0], self.memory, x.shape[2])
        places = x.new_zeros(self.memory + self.length, x.shape[2])
        for layer in self.layers:
            x = layer(x, memory, places)
        return self.head(x), self.tail(x[:, ::8])
