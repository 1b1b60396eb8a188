"""Networks for `scripts.bench.fuse`, as a sweep's factory and batches: small ones, large ones, and some of HFTA's."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

_TEST_IMAGES = 360
_STEPS = 60
Batch = tuple[Tensor, Tensor]


def _digits() -> tuple[Tensor, Tensor]:
    digits = load_digits()
    order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(0))
    return torch.tensor(digits.images, dtype=torch.float32)[order].flatten(1) / 16, torch.tensor(digits.target)[order]


IMAGES, LABELS = _digits()


def digits_net() -> nn.Module:
    """The digits sweep."""
    return perceptron(64, 128, 10)


def digits_train() -> Iterator[Batch]:
    """One epoch in batches of 32, shuffled."""
    for rows in (torch.randperm(len(IMAGES) - _TEST_IMAGES) + _TEST_IMAGES).split(32):
        yield IMAGES[rows], LABELS[rows]


def digits_test() -> list[Batch]:
    """The test set as one batch."""
    return [(IMAGES[:_TEST_IMAGES], LABELS[:_TEST_IMAGES])]


def perceptron(*sizes: int) -> nn.Module:
    """Linear layers with ReLU between them."""
    layers: list[nn.Module] = []
    for size, following in itertools.pairwise(sizes):
        layers += [nn.Linear(size, following), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def convolutions(first: int, second: int) -> nn.Module:
    """Two convolutions with BatchNorm on 28x28 images."""
    return nn.Sequential(
        nn.Conv2d(1, first, 3, padding=1), nn.BatchNorm2d(first), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(first, second, 3, padding=1), nn.BatchNorm2d(second), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(second * 49, 10),
    )  # fmt: skip


class Tokens(nn.Module):
    """Predicts a token at each place, through a layer over embedded tokens."""

    def __init__(self, layer: nn.Module, size: int, tokens: int = 64) -> None:
        super().__init__()
        self.embedding, self.layer, self.out = nn.Embedding(tokens, size), layer, nn.Linear(size, tokens)

    def forward(self, tokens: Tensor) -> Tensor:
        """(samples, length) to (samples, tokens, length)."""
        found = self.layer(self.embedding(tokens))
        return self.out(found[0] if isinstance(found, tuple) else found).transpose(1, 2)  # type: ignore[no-any-return]


class PointNet(nn.Module):
    """PointNet's classification without its transforms, one of HFTA's cases, narrower."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.points = nn.Sequential(
            nn.Conv1d(3, width, 1), nn.BatchNorm1d(width), nn.ReLU(),
            nn.Conv1d(width, 2 * width, 1), nn.BatchNorm1d(2 * width), nn.ReLU(),
            nn.Conv1d(2 * width, 8 * width, 1), nn.BatchNorm1d(8 * width),
        )  # fmt: skip
        self.head = nn.Sequential(
            nn.Linear(8 * width, 4 * width), nn.BatchNorm1d(4 * width), nn.ReLU(), nn.Dropout(0.3),
            nn.Linear(4 * width, 10),
        )  # fmt: skip

    def forward(self, clouds: Tensor) -> Tensor:
        """(samples, 3, points) to (samples, classes)."""
        return self.head(self.points(clouds).max(2)[0])  # type: ignore[no-any-return]


class Discriminator(nn.Module):
    """Of DCGAN, another of HFTA's cases, for 32x32 images; alone, as a classifier."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after in ((3, width), (width, 2 * width), (2 * width, 4 * width)):
            layers += [nn.Conv2d(before, after, 4, 2, 1, bias=False), nn.BatchNorm2d(after), nn.LeakyReLU(0.2)]
        self.layers = nn.Sequential(*layers, nn.Flatten(), nn.Linear(4 * width * 16, 2))

    def forward(self, images: Tensor) -> Tensor:
        """(samples, 3, 32, 32) to (samples, 2)."""
        return self.layers(images)  # type: ignore[no-any-return]


def _encoder(size: int) -> nn.Module:
    layer = nn.TransformerEncoderLayer(size, 2, 2 * size, 0.1, batch_first=True)
    return Tokens(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), size)


def _of(*shape: int, classes: int = 10) -> Callable[[], Batch]:
    return lambda: (torch.randn(shape), torch.randint(classes, shape[:1]))


def _words(samples: int, length: int) -> Callable[[], Batch]:
    return lambda: (torch.randint(64, (samples, length)), torch.randint(64, (samples, length)))


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], Batch]]] = {
    "perceptron 16-32-32-10, batch 8": (lambda: perceptron(16, 32, 32, 10), _of(8, 16)),
    "perceptron 64-128-10, batch 32": (lambda: perceptron(64, 128, 10), _of(32, 64)),
    "perceptron 784-64-64-10, batch 32": (lambda: perceptron(784, 64, 64, 10), _of(32, 784)),
    "perceptron 784-256-256-10, batch 128": (lambda: perceptron(784, 256, 256, 10), _of(128, 784)),
    "convolutions 2-4, batch 16": (lambda: convolutions(2, 4), _of(16, 1, 28, 28)),
    "convolutions 8-16, batch 32": (lambda: convolutions(8, 16), _of(32, 1, 28, 28)),
    "LSTM 16, batch 8, length 12": (lambda: Tokens(nn.LSTM(16, 16, batch_first=True), 16), _words(8, 12)),
    "Transformer 16, batch 8, length 12": (lambda: _encoder(16), _words(8, 12)),
    "PointNet 16, batch 8, 64 points (HFTA)": (PointNet, _of(8, 3, 64)),
    "DCGAN's discriminator 4, batch 8 (HFTA)": (Discriminator, _of(8, 3, 32, 32, classes=2)),
}


def case_net(number: int) -> nn.Module:
    """The network of a case."""
    return list(CASES.values())[number][0]()


def case_batches(number: int) -> Iterator[Batch]:
    """Batches of noise for it: nothing can be learned by heart, so gradients stay what they are in training."""
    for _ in range(_STEPS):
        yield list(CASES.values())[number][1]()
