"""Small and older networks of the published measurements: PROFET's (Keras), recommenders, speech, detection."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from scripts.fit.published_nets import Residual, conv, resnet50, vgg


def classes_of(pixels: int) -> int:
    """The classes of PROFET's made-up images."""
    return 10 if pixels < 64 else 100 if pixels < 224 else 1000


def _flat(features: nn.Module, pixels: int, *widths: int, dropout: bool = False) -> nn.Module:
    """The features, flattened, and dense layers."""
    with torch.no_grad():
        size = features.to("meta")(torch.empty(1, 3, pixels, pixels, device="meta")).numel()
    layers: list[nn.Module] = [nn.Flatten()]
    for i, width in enumerate(widths):
        layers += [nn.Dropout()] * dropout + [nn.Linear(size, width)] + [nn.ReLU()] * (i < len(widths) - 1)
        size = width
    return nn.Sequential(features, *layers)


def lenet5(pixels: int) -> nn.Module:
    """PROFET's LeNet5."""
    features = nn.Sequential(
        nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)
    )
    return _flat(features, pixels, 120, 84, classes_of(pixels))


def mnist_cnn(pixels: int) -> nn.Module:
    """PROFET's MNIST_CNN."""
    features = nn.Sequential(
        nn.Conv2d(3, 32, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2)
    )
    return _flat(features, pixels, classes_of(pixels), dropout=True)


def cifar10_cnn(pixels: int) -> nn.Module:
    """PROFET's CIFAR10_CNN."""
    layers: list[nn.Module] = []
    for inner, outer in ((3, 32), (32, 64)):
        layers += [conv(inner, outer, 3, bias=True), nn.ReLU(), nn.Conv2d(outer, outer, 3), nn.ReLU()]
        layers += [nn.MaxPool2d(2), nn.Dropout(0.25)]
    return _flat(nn.Sequential(*layers), pixels, 512, classes_of(pixels))


def alexnet_keras(pixels: int) -> nn.Module:
    """PROFET's AlexNet: no strides, wide, normalised everywhere."""
    layers: list[nn.Module] = []
    inner = 3
    for outer, kernel, padded, pooled in (
        (96, 11, 0, True), (256, 5, 0, True), (512, 3, 1, True), (1024, 3, 1, False), (1024, 3, 1, True),
    ):  # fmt: skip
        layers += [nn.Conv2d(inner, outer, kernel, padding=kernel // 2 + padded), nn.BatchNorm2d(outer), nn.ReLU()]
        layers += [nn.MaxPool2d(2)] * pooled
        inner = outer
    with torch.no_grad():
        size = nn.Sequential(*layers).to("meta")(torch.empty(2, 3, pixels, pixels, device="meta")).numel() // 2
    dense: list[nn.Module] = [nn.Flatten()]
    for width in (3072, 4096):
        dense += [nn.Linear(size, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout()]
        size = width
    last = classes_of(pixels)
    return nn.Sequential(*layers, *dense, nn.Linear(size, last), nn.BatchNorm1d(last))


def resnet_small(pixels: int) -> nn.Module:
    """PROFET's ResNetSmall: convolutions of one pixel."""

    def block(inner: int, outer: int, stride: int) -> nn.Module:
        body = nn.Sequential(
            conv(inner, outer, 1, stride, bias=True), nn.BatchNorm2d(outer), nn.ReLU(),
            conv(outer, outer, 1, bias=True), nn.BatchNorm2d(outer),
        )  # fmt: skip
        shortcut = nn.Sequential(conv(inner, outer, 1, stride, bias=True), nn.BatchNorm2d(outer))
        return Residual(body, shortcut if stride > 1 else None)

    first = [conv(3, 64, 7, 2, bias=True), nn.ReLU(), nn.BatchNorm2d(64), nn.MaxPool2d(3, 2, 1)]
    blocks = [block(64, 64, 2), block(64, 64, 1), block(64, 128, 2), block(128, 128, 1)]
    return nn.Sequential(*first, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, classes_of(pixels)))


def resnet_keras(pixels: int, depths: tuple[int, ...], deep: bool) -> nn.Module:
    """PROFET's ResNet-18, 34 and 50: normalised before each convolution, with biases."""
    layers: list[nn.Module] = [conv(3, 64, 7, 2, bias=True), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    inner = 64
    for stage, depth in enumerate(depths):
        width = 64 * 2**stage
        for i in range(depth):
            stride = 2 if stage and not i else 1
            sizes = [(inner, width, 1, stride), (width, width, 3, 1), (width, 4 * width, 1, 1)] if deep else [
                (inner, width, 3, stride), (width, width, 3, 1)]  # fmt: skip
            body: list[nn.Module] = []
            for j, (come, go, kernel, step) in enumerate(sizes):
                if j or i or stage:
                    body += [nn.BatchNorm2d(come), nn.ReLU()]
                body.append(conv(come, go, kernel, step, bias=True))
            outer = sizes[-1][1]
            shortcut = conv(inner, outer, 1, stride, bias=True) if stride > 1 or inner != outer else None
            layers.append(Residual(nn.Sequential(*body), shortcut, activate=False))
            inner = outer
    layers += [nn.BatchNorm2d(inner), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(inner, classes_of(pixels)))


def profet(name: str, pixels: int) -> nn.Module:
    """A model of PROFET by its name."""
    vggs = {"VGG11": (1, 1, 2, 2, 2), "VGG16": (2, 2, 3, 3, 3), "VGG19": (2, 2, 4, 4, 4)}
    resnets = {
        "ResNet18": ((2, 2, 2, 2), False), "ResNet34": ((3, 4, 6, 3), False), "ResNet50": ((3, 4, 6, 3), True),
    }  # fmt: skip
    if name in vggs:
        return vgg(vggs[name], classes_of(pixels), pixels, dropout=False)
    if name in resnets:
        return resnet_keras(pixels, *resnets[name])
    by_name = {
        "LeNet5": lenet5, "MNIST_CNN": mnist_cnn, "CIFAR10_CNN": cifar10_cnn, "AlexNet": alexnet_keras,
        "ResNetSmall": resnet_small,
    }  # fmt: skip
    return by_name[name](pixels)


class NeuMf(nn.Module):
    """NeuMF on MovieLens: factors multiplied, beside a perceptron."""

    def __init__(self, users: int, items: int, factors: int, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.tables = nn.ModuleList(
            nn.Embedding(rows, width) for width in (factors, widths[0] // 2) for rows in (users, items)
        )
        layers: list[nn.Module] = []
        for inner, outer in pairwise(widths):
            layers += [nn.Linear(inner, outer), nn.ReLU()]
        self.mlp, self.out = nn.Sequential(*layers), nn.Linear(factors + widths[-1], 1)

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        product = self.tables[0](users) * self.tables[1](items)
        deep = self.mlp(torch.cat([self.tables[2](users), self.tables[3](items)], -1))
        return torch.as_tensor(self.out(torch.cat([product, deep], -1)))


class DeepSpeech2(nn.Module):
    """DeepSpeech 2: two convolutions over a spectrogram, five bidirectional GRUs, characters."""

    def __init__(self, width: int = 800, layers: int = 5) -> None:
        super().__init__()
        self.convs = nn.Sequential(
            nn.Conv2d(1, 32, (41, 11), (2, 2), (20, 5)), nn.BatchNorm2d(32), nn.Hardtanh(0, 20),
            nn.Conv2d(32, 32, (21, 11), (2, 1), (10, 5)), nn.BatchNorm2d(32), nn.Hardtanh(0, 20),
        )  # fmt: skip
        sizes = [1312] + [width] * (layers - 1)
        self.recurrent = nn.ModuleList(nn.GRU(size, width, bidirectional=True, bias=True) for size in sizes)
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(layers - 1))
        self.out, self.width = nn.Linear(width, 29, bias=False), width

    def forward(self, sound: Tensor) -> Tensor:
        x = self.convs(sound).flatten(1, 2).permute(2, 0, 1).contiguous()
        for i, recurrent in enumerate(self.recurrent):
            if i:
                x = self.norms[i - 1](x.flatten(0, 1)).view(x.shape)
            y, _ = recurrent(x)
            x = y.view(x.shape[0], x.shape[1], 2, self.width).sum(2)
        return torch.as_tensor(self.out(x))


def recoder(items: int = 20000, width: int = 200) -> nn.Module:
    """An autoencoder over the items of MovieLens-20M."""
    return nn.Sequential(nn.Linear(items, width), nn.Tanh(), nn.Linear(width, items))


class Ssd300(nn.Module):
    """SSD of 300 pixels on ResNet-50 up to its third stage, whose stride is 1."""

    def __init__(self) -> None:
        super().__init__()
        layers = list(resnet50().children())[:17]
        self.features = nn.Sequential(*layers)
        for module in layers[11].modules():
            if isinstance(module, nn.Conv2d):
                module.stride = (1, 1)
        sizes = [(1024, 256, 512, 2), (512, 256, 512, 2), (512, 128, 256, 2), (256, 128, 256, 1), (256, 128, 256, 1)]
        self.extra = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(a, b, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU(),
                nn.Conv2d(b, c, 3, s, 1 if s == 2 else 0, bias=False), nn.BatchNorm2d(c), nn.ReLU(),
            )
            for a, b, c, s in sizes
        )  # fmt: skip
        shapes = list(zip((1024, 512, 512, 256, 256, 256), (4, 6, 6, 6, 4, 4), strict=True))
        self.places = nn.ModuleList(conv(channels, boxes * 4, 3, bias=True) for channels, boxes in shapes)
        self.classes = nn.ModuleList(conv(channels, boxes * 81, 3, bias=True) for channels, boxes in shapes)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        maps = [self.features(images)]
        for layer in self.extra:
            maps.append(layer(maps[-1]))
        places, classes = [], []
        for place, kind, x in zip(self.places, self.classes, maps, strict=True):
            places.append(place(x).flatten(1))
            classes.append(kind(x).view(x.shape[0], 81, -1))
        return torch.cat(places, 1), functional.log_softmax(torch.cat(classes, 2), 1)


class UNet(nn.Module):
    """A U-Net in two or three dimensions: `widths` from the outside to the inside, two convolutions at each."""

    def __init__(self, dims: int, inner: int, classes: int, widths: tuple[int, ...], norm: bool) -> None:
        super().__init__()
        convs = {2: nn.Conv2d, 3: nn.Conv3d}[dims]
        ups = {2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}[dims]
        norms = {2: nn.InstanceNorm2d, 3: nn.InstanceNorm3d}[dims]

        def double(come: int, go: int, stride: int = 1) -> nn.Module:
            layers: list[nn.Module] = []
            for j, size in enumerate((come, go)):
                layers.append(convs(size, go, 3, stride if not j else 1, 1, bias=not norm))
                layers += [norms(go, affine=True)] * norm + [nn.LeakyReLU() if norm else nn.ReLU()]
            return nn.Sequential(*layers)

        pool = {2: nn.MaxPool2d, 3: nn.MaxPool3d}[dims]
        self.down = nn.ModuleList(
            double(inner if not i else widths[i - 1], w, 2 if norm and i else 1) for i, w in enumerate(widths)
        )
        self.pool = None if norm else pool(2)
        back = list(zip(widths[::-1], widths[-2::-1], strict=False))
        self.up = nn.ModuleList(ups(a, b, 2, 2) for a, b in back)
        self.merge = nn.ModuleList(double(2 * b, b) for _, b in back)
        self.out = convs(widths[0], classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for i, layer in enumerate(self.down):
            if i and self.pool is not None:
                x = self.pool(x)
            x = layer(x)
            kept.append(x)
        for up, merge, other in zip(self.up, self.merge, kept[-2::-1], strict=True):
            x = merge(torch.cat([up(x), other], 1))
        return torch.as_tensor(self.out(x))
