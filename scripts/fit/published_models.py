"""Counts the operators of the networks whose step times were published, and writes `published_operators.json`.

The fits need the counts, not torch. The definitions are in `published_nets` and `published_small_nets`.

python -m scripts.fit.published_models
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn

from ddlprof.model.operators import StepOperators
from ddlprof.operators.trace_step import Inputs, StepSettings, trace_step
from scripts.bench.jobs import progress
from scripts.fit import published
from scripts.fit import published_nets as nets
from scripts.fit import published_small_nets as small

MakeInputs: TypeAlias = Callable[[int], Sequence[Tensor]]
PIXELS = (32, 64, 128, 224, 256)
PROFET = (
    "AlexNet", "CIFAR10_CNN", "LeNet5", "MNIST_CNN", "ResNet18", "ResNet34", "ResNet50", "ResNetSmall", "VGG11",
    "VGG16", "VGG19",
)  # fmt: skip


@dataclass(frozen=True)
class Published:
    """A network as a source ran it."""

    build: Callable[[], nn.Module]
    inputs: MakeInputs
    """Of a batch."""
    batch: int
    optimizer: str


def images(*pixels: int, channels: int = 3) -> MakeInputs:
    """Images of these sides, or square ones, in floats."""
    sides = pixels if len(pixels) > 1 else pixels * 2
    shape = (channels, *sides)
    return lambda batch: [torch.empty(batch, *shape)]


def tokens(length: int, count: int = 1) -> MakeInputs:
    """Sequences of words."""
    return lambda batch: [torch.zeros(batch, length, dtype=torch.int64) for _ in range(count)]


def rows(count: int) -> MakeInputs:
    """One word of each sample, `count` times."""
    return lambda batch: [torch.zeros(batch, dtype=torch.int64) for _ in range(count)]


def bert(width: int, layers: int, length: int, head: str) -> Callable[[], nn.Module]:
    """BERT, or GPT where the head is "lm"."""
    words = 50257 if head == "lm" else 30522
    return lambda: nets.Encoder(width, layers, width // 64, words, length, head)


def of_profet(name: str, pixels: int) -> Published:
    """A network of PROFET at a size of its images."""
    return Published(lambda: small.profet(name, pixels), images(pixels), 16, "sgd")


def table() -> dict[str, Published]:
    """All networks by name; a sequence length follows after a bar."""
    base, large = (768, 12), (1024, 24)
    found = {f"{name}|{pixels}px": of_profet(name, pixels) for name in PROFET for pixels in PIXELS}
    found |= {
        "resnet50": Published(nets.resnet50, images(224), 32, "sgd"),
        "resnext101_32x4d": Published(nets.resnext101, images(224), 32, "sgd"),
        "vgg16": Published(lambda: nets.vgg((2, 2, 3, 3, 3), 1000, 224, True), images(224), 16, "sgd"),
        "alexnet": Published(nets.alexnet, images(224), 128, "sgd"),
        "resnet18_cifar": Published(nets.resnet18_cifar, images(32), 64, "sgd"),
        "bert_base|384": Published(bert(*base, 512, "span"), tokens(384), 8, "adamw"),
        "bert_base|128": Published(bert(*base, 512, "mlm"), tokens(128), 32, "adamw"),
        "bert_base|64": Published(bert(*base, 512, "mlm"), tokens(64), 64, "adamw"),
        "bert_large|384": Published(bert(*large, 512, "span"), tokens(384), 8, "adamw"),
        "bert_large|128": Published(bert(*large, 512, "mlm"), tokens(128), 16, "adamw"),
        "bert_large|512": Published(bert(*large, 512, "mlm"), tokens(512), 8, "adamw"),
        "gpt2_large|1024": Published(bert(1280, 36, 1024, "lm"), tokens(1024), 1, "none"),
        "gpt_h768_l12|2048": Published(bert(768, 12, 2048, "lm"), tokens(2048), 8, "adam"),
        "gpt_h1536_l16|2048": Published(bert(1536, 16, 2048, "lm"), tokens(2048), 2, "adam"),
        "bart_large|1024": Published(
            lambda: nets.Translator(1024, 12, 16, 4096, 50264), tokens(1024, 2), 4, "adam"),
        "transformer_base_multi30k": Published(
            lambda: nets.Translator(512, 6, 8, 2048, 9500), tokens(28, 2), 64, "adam"),
        "transformer_xl_base": Published(
            lambda: nets.TransformerXl(512, 16, 8, 64, 2048, 192, 192), tokens(192), 16, "adam"),
        "transformer_xl_large": Published(
            lambda: nets.TransformerXl(1024, 18, 16, 64, 4096, 384, 384), tokens(384), 8, "adam"),
        "autoencoder_recoder_ml20m": Published(
            small.recoder, lambda batch: [torch.empty(batch, 20000)], 1024, "adam"),
        "neumf_ml1m": Published(
            lambda: small.NeuMf(6040, 3706, 32, (256, 128, 64, 32)), rows(2), 256, "adam"),
        "ncf_neumf_ml20m": Published(
            lambda: small.NeuMf(138493, 26744, 64, (256, 256, 128, 64)), rows(2), 1048576, "adam"),
        "deepspeech2_gru": Published(
            small.DeepSpeech2, lambda batch: [torch.empty(batch, 1, 161, 800)], 20, "sgd"),
        "ssd300_r50": Published(small.Ssd300, images(300), 32, "sgd"),
        "unet2d_medical": Published(
            lambda: small.UNet(2, 1, 2, (64, 128, 256, 512, 1024), False), images(512, channels=1), 8, "adam"),
        "nnunet_2d": Published(
            lambda: small.UNet(2, 5, 4, (32, 64, 128, 256, 512, 512), True), images(192, 160, channels=5), 32, "adam"),
        "nnunet_3d": Published(
            lambda: small.UNet(3, 5, 4, (32, 64, 128, 256, 320, 320), True),
            images(128, 128, 128, channels=5), 2, "adam"),
    }  # fmt: skip
    return found


def counted(of: Published) -> StepOperators:
    """The operators of one step in fp32."""
    with torch.device("meta"):
        model = of.build()

    def inputs(batch: int) -> Inputs:
        return Inputs([tensor.clone() for tensor in of.inputs(batch)], {})

    return trace_step(model, inputs, StepSettings(batch=of.batch, precision="fp32", optimizer=of.optimizer))


def main() -> None:
    found = {}
    for name, of in table().items():
        progress(f"{name}")
        found[name] = counted(of)
    published.FILE.write_text(published.written(found), encoding="utf-8")


if __name__ == "__main__":
    main()
