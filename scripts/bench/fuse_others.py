"""Ten networks of others for `scripts.bench.fuse others`, written out in their published sizes unless it says so.

HFTA's DCGAN and PointNet; BERT and GPT-2 in the small sizes that are trained on a CPU; torchvision's ResNet-18 as for
CIFAR; PyTorch's examples of words and digits; scikit-learn's perceptron; perceptron and ResNet for tables, after
Gorishniy et al. 2021. Batches are noise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from scripts.bench.fuse_cases import Batch, Tokens, perceptron

_STEPS = 60


class TNet(nn.Module):
    """PointNet's net that turns points, of `size` dimensions."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.points = nn.Sequential(*_points(size, 64), *_points(64, 128), *_points(128, 1024))
        self.head = nn.Sequential(
            nn.Linear(1024, 512), nn.BatchNorm1d(512), nn.ReLU(), nn.Linear(512, 256), nn.BatchNorm1d(256), nn.ReLU(),
            nn.Linear(256, size * size),
        )  # fmt: skip

    def forward(self, points: Tensor) -> Tensor:
        """(samples, size, points) to matrices (samples, size, size)."""
        found = self.head(self.points(points).max(2)[0]).unflatten(1, (self.size, self.size))
        return found + torch.eye(self.size)  # type: ignore[no-any-return]


def _points(before: int, after: int) -> list[nn.Module]:
    return [nn.Conv1d(before, after, 1), nn.BatchNorm1d(after), nn.ReLU()]


class PointNet(nn.Module):
    """PointNet's classifier, with both transforms."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = TNet(3), TNet(64)
        self.low = nn.Sequential(*_points(3, 64))
        self.high = nn.Sequential(*_points(64, 128), nn.Conv1d(128, 1024, 1), nn.BatchNorm1d(1024))
        self.head = nn.Sequential(
            nn.Linear(1024, 512), nn.BatchNorm1d(512), nn.ReLU(), nn.Linear(512, 256), nn.Dropout(0.3),
            nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, 16),
        )  # fmt: skip

    def forward(self, points: Tensor) -> Tensor:
        """(samples, 3, points) to (samples, classes)."""
        turned = self.low(self.first(points) @ points)
        return self.head(self.high(self.second(turned) @ turned).max(2)[0])  # type: ignore[no-any-return]


def discriminator(width: int) -> nn.Module:
    """Of DCGAN, for 64x64 images, as a classifier."""
    layers: list[nn.Module] = [nn.Conv2d(3, width, 4, 2, 1, bias=False), nn.LeakyReLU(0.2)]
    for before in (width, 2 * width, 4 * width):
        layers += [nn.Conv2d(before, 2 * before, 4, 2, 1, bias=False), nn.BatchNorm2d(2 * before), nn.LeakyReLU(0.2)]
    return nn.Sequential(*layers, nn.Conv2d(8 * width, 2, 4, bias=False), nn.Flatten())


class Bert(nn.Module):
    """BERT with a classifier at its first token; 2 layers of 128 are google/bert_uncased_L-2_H-128_A-2."""

    def __init__(self, size: int = 128, layers: int = 2, words: int = 1000) -> None:
        super().__init__()
        self.words, self.places, self.norm = nn.Embedding(words, size), nn.Embedding(512, size), nn.LayerNorm(size)
        layer = nn.TransformerEncoderLayer(size, 2, 4 * size, 0.1, "gelu", batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.Linear(size, size), nn.Tanh(), nn.Dropout(0.1), nn.Linear(size, 2))

    def forward(self, tokens: Tensor) -> Tensor:
        """(samples, length) to (samples, classes)."""
        places = self.places(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.layers(self.norm(self.words(tokens) + places))[:, 0])  # type: ignore[no-any-return]


class Attends(nn.Module):
    """A layer of GPT-2."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads, self.before, self.after = heads, nn.LayerNorm(size), nn.LayerNorm(size)
        self.three, self.out = nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.mlp = nn.Sequential(nn.Linear(size, 4 * size), nn.GELU(), nn.Linear(4 * size, size))

    def forward(self, x: Tensor) -> Tensor:
        """(samples, length, size) to the same."""
        query, key, value = (
            each.unflatten(-1, (self.heads, -1)).transpose(-3, -2) for each in self.three(self.before(x)).chunk(3, -1)
        )
        found = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(found.transpose(-3, -2).flatten(-2))
        return x + self.mlp(self.after(x))  # type: ignore[no-any-return]


class Gpt2(nn.Module):
    """GPT-2; 4 layers of 128 with 4 heads are nanoGPT's advice for a CPU."""

    def __init__(self, size: int = 128, layers: int = 4, letters: int = 65) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(letters, size), nn.Embedding(64, size)
        self.layers = nn.Sequential(*(Attends(size, 4) for _ in range(layers)), nn.LayerNorm(size))
        self.out = nn.Linear(size, letters, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """(samples, length) to (samples, letters, length)."""
        places = self.places(torch.arange(tokens.shape[1], device=tokens.device))
        return self.out(self.layers(self.letters(tokens) + places)).transpose(-2, -1)  # type: ignore[no-any-return]


class Block(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU(),
            nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after),
        )  # fmt: skip
        shorter = [nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after)]
        self.shortcut = nn.Sequential(*(shorter if stride > 1 or before != after else []))

    def forward(self, x: Tensor) -> Tensor:
        """Images to images."""
        return functional.relu(self.main(x) + self.shortcut(x))


def resnet18() -> nn.Module:
    """ResNet-18 as for CIFAR: a first convolution of 3x3, without pooling."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    for before, after, stride in ((64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)):
        layers += [Block(before, after, stride), Block(after, after, 1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


def digits() -> nn.Module:
    """PyTorch's example of MNIST."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25),
        nn.Flatten(), nn.Linear(9216, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10),
    )  # fmt: skip


class TableBlock(nn.Module):
    """A layer of the ResNet for tables."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.main = nn.Sequential(
            nn.BatchNorm1d(size), nn.Linear(size, 2 * size), nn.ReLU(), nn.Dropout(0.2), nn.Linear(2 * size, size)
        )

    def forward(self, x: Tensor) -> Tensor:
        """(samples, size) to the same."""
        return x + self.main(x)  # type: ignore[no-any-return]


def table_resnet(columns: int, size: int) -> nn.Module:
    """The ResNet for tables, with two blocks."""
    head = [nn.BatchNorm1d(size), nn.ReLU(), nn.Linear(size, 2)]
    return nn.Sequential(nn.Linear(columns, size), TableBlock(size), TableBlock(size), *head)


def _noise(*shape: int, classes: int) -> Callable[[], Batch]:
    return lambda: (torch.randn(shape), torch.randint(classes, shape[:1]))


def _words(samples: int, length: int, words: int) -> Callable[[], Batch]:
    return lambda: (torch.randint(words, (samples, length)), torch.randint(words, (samples, length)))


def _sentences() -> Batch:
    return torch.randint(1000, (16, 32)), torch.randint(2, (16,))


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], Batch]]] = {
    "DCGAN's discriminator 64, 64x64, batch 8 (HFTA)": (lambda: discriminator(64), _noise(8, 3, 64, 64, classes=2)),
    "PointNet's classifier, batch 8, 250 points (HFTA)": (PointNet, _noise(8, 3, 250, classes=16)),
    "BERT 2 x 128, batch 16, length 32": (Bert, _sentences),
    "GPT-2 4 x 128, batch 12, length 64": (Gpt2, _words(12, 64, 65)),
    "ResNet-18, 32x32, batch 8": (resnet18, _noise(8, 3, 32, 32, classes=10)),
    "LSTM 2 x 200, batch 20, length 35": (
        lambda: Tokens(nn.LSTM(200, 200, 2, batch_first=True, dropout=0.2), 200, 1000), _words(20, 35, 1000)
    ),
    "convolutions of PyTorch's MNIST, batch 64": (digits, _noise(64, 1, 28, 28, classes=10)),
    "scikit-learn's MLP 30-100-2, batch 200": (lambda: perceptron(30, 100, 2), _noise(200, 30, classes=2)),
    "MLP for tables 54-256-256-256-7, batch 256": (
        lambda: perceptron(54, 256, 256, 256, 7), _noise(256, 54, classes=7)
    ),
    "ResNet for tables 14-128, batch 128": (lambda: table_resnet(14, 128), _noise(128, 14, classes=2)),
}  # fmt: skip


def case_net(number: int) -> nn.Module:
    """The network of a case."""
    return list(CASES.values())[number][0]()


def case_batches(number: int) -> Iterator[Batch]:
    """Its batches."""
    for _ in range(_STEPS):
        yield list(CASES.values())[number][1]()
