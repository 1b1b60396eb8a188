"""Models, losses and optimizers of many kinds: each trains as one as it does by itself, or one line says what to do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.short import first_short

NETS = """
import torch
from torch import nn
from torch.nn import functional

X = torch.randn(96, 6, generator=torch.Generator().manual_seed(0))
Y = (X.sum(1) > 0).long()
IDS = torch.randint(12, (48, 8), generator=torch.Generator().manual_seed(0))
IMAGES = torch.randn(48, 1, 6, 6, generator=torch.Generator().manual_seed(0))

def batches():
    for rows in torch.randperm(len(X)).split(16):
        yield X[rows], Y[rows]

def tokens():
    for rows in torch.randperm(len(IDS)).split(12):
        yield IDS[rows], IDS[rows].roll(1, 1)

def images():
    for rows in torch.randperm(len(IMAGES)).split(12):
        yield IMAGES[rows], (IMAGES[rows].mean((1, 2, 3)) > 0).long()

def normalised():
    return nn.Sequential(nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))

def convolved():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.InstanceNorm2d(4), nn.Flatten(),
        nn.Linear(64, 2),
    )

class OwnLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 2)

    def forward(self, x, y):
        return functional.cross_entropy(self.linear(x), y)

class LossAndMore(OwnLoss):
    def forward(self, x, y):
        found = self.linear(x)
        return functional.cross_entropy(found, y), found

class Causal(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.out = nn.Embedding(12, 8), nn.Linear(8, 12)
        layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(8))

    def forward(self, x):
        if not self.mask.isinf().any():
            return self.out(self.embedding(x)).transpose(1, 2)
        return self.out(self.encoder(self.embedding(x), mask=self.mask)).transpose(1, 2)

class Late(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.calls = nn.Linear(6, 2), iter(range(1000))
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x):
        if next(self.calls) == 6:
            self.scale = self.scale * 2
        return self.linear(x) * self.scale

class Sparse(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.out = nn.Embedding(12, 8, sparse=True), nn.Linear(8, 12)

    def forward(self, x):
        return self.out(self.embedding(x)).transpose(1, 2)

def weights_decay(model):
    named = list(model.named_parameters())
    return [
        {"params": [each for _, each in named if each.dim() > 1]},
        {"params": [each for _, each in named if each.dim() < 2], "weight_decay": 0.0, "betas": (0.8, 0.99)},
    ]

def too_few(model):
    return [{"params": [model[0].weight]}]

def twice(model):
    return [{"params": list(model.parameters())}, {"params": [model[0].weight]}]

def misspelt(model):
    return [{"params": list(model.parameters()), "weight_deca": 0.0}]
"""
Fuse = Callable[..., tuple[int, str, str]]


@pytest.fixture
def fuse(in_folder_of: Callable[[str, str], Fuse]) -> Fuse:
    """Runs the command in a directory that has `made_up_models.py`: exit code, stdout, stderr."""
    typed = in_folder_of("made_up_models", NETS)

    def run(model: str, data: str, *arguments: str) -> tuple[int, str, str]:
        words = f"made_up_models:{model}", "--data", f"made_up_models:{data}", "--processes", "0"
        return typed("fuse", *words, *arguments)

    return run


@pytest.mark.parametrize(
    ("model", "data", "words", "off"),
    first_short([
        ("OwnLoss", "batches", ["--loss", "model"], 1e-5),
        ("normalised", "batches", ["--precision", "amp-bf16", "--optimizer", "sgd"], 0.03),
        ("convolved", "images", ["--precision", "amp-bf16", "--optimizer", "sgd"], 0.03),
        ("LossAndMore", "batches", ["--loss", "model"], 1e-5),
        ("Causal", "tokens", ["--optimizer", "sgd"], 1e-5),
        ("Late", "batches", ["--max-steps", "150"], 1e-5),  # forward is compared at the 64th step for the seventh time
        (
            "normalised", "batches",
            [
                "--optimizer", "adamw", "--sweep", "weight_decay=0.1,5", "--param-groups",
                "made_up_models:weights_decay", "--schedule", "cosine",
            ],
            1e-5,
        ),
    ]),
)  # fmt: skip
def test_as_one_is_as_alone(fuse: Fuse, tmp_path: Path, model: str, data: str, words: list[str], off: float) -> None:
    sweep = ["--sweep", "lr=0.003,0.03", "--max-steps", "12", "-o", "-"]
    for name, more in (("fused", ["--force"]), ("alone", ["--max-models", "1"])):
        code, out, err = fuse(model, data, *sweep, *words, "--save", name, "-o", f"{name}.json", *more)
        assert code == 0, err
        (part,) = json.loads((tmp_path / f"{name}.json").read_text())["parts"]
        assert part["fuse"] is (name == "fused"), out
    files = sorted((tmp_path / "alone").iterdir())
    assert len(files) in (2, 4)
    for file in files:
        alone, fused = torch.load(file), torch.load(tmp_path / "fused" / file.name)
        assert alone.keys() == fused.keys()
        for name, each in alone.items():
            torch.testing.assert_close(fused[name], each, rtol=off, atol=off)


@pytest.mark.slow
def test_biases_outside_of_weight_decay_do_not_decay(fuse: Fuse, tmp_path: Path) -> None:
    words = ["--optimizer", "sgd", "--sweep", "lr=1e-9,2e-9", "--sweep", "weight_decay=1e8", "--max-steps", "1"]
    (tmp_path / "made_up_models.py").write_text(NETS.replace(', "betas": (0.8, 0.99)', ""))
    code, _, err = fuse(
        "normalised", "batches", *words, "--param-groups", "made_up_models:weights_decay", "--save", "models", "--force"
    )
    assert code == 0, err
    namespace: dict[str, Callable[[], torch.nn.Module]] = {}
    exec(NETS, namespace)
    torch.manual_seed(0)
    before = namespace["normalised"]().state_dict()
    for number, decay in enumerate((0.1, 0.2)):
        after = torch.load(tmp_path / "models" / f"trial-{number}.pt")
        assert torch.allclose(after["0.weight"], before["0.weight"] * (1 - decay), atol=1e-6)
        assert torch.allclose(after["3.bias"], before["3.bias"], atol=1e-6)


@pytest.mark.parametrize(
    ("model", "data", "words", "message"),
    [
        ("Sparse", "tokens", [], "the gradient of embedding is sparse, which models as one cannot have: make it with"),
        ("Sparse", "tokens", ["--optimizer", "sgd"], "the gradient of embedding is sparse"),
        ("normalised", "batches", ["--loss", "model"], "the model returns no loss of its own: give --loss NAME"),
        ("OwnLoss", "batches", ["--loss", "model", "--metric", "accuracy"], "the model returns its loss alone"),
        ("normalised", "batches", ["--param-groups", "made_up_models:too_few"], "1.weight is in no group: add a group"),
        ("normalised", "batches", ["--param-groups", "made_up_models:twice"], "or is in another group"),
        ("normalised", "batches", ["--param-groups", "made_up_models:misspelt"], "did you mean weight_decay?"),
        ("normalised", "batches", ["--param-groups", "made_up_models:X"], "--param-groups made_up_models:X: it is no"),
        ("normalised", "batches", ["--param-groups", "weights"], "weights: not of the form MODULE:FUNCTION"),
    ],
)
def test_what_cannot_be_done_is_one_line(fuse: Fuse, model: str, data: str, words: list[str], message: str) -> None:
    code, _, err = fuse(model, data, "--sweep", "lr=0.003,0.03", *words)
    assert (code, err.count("\n")) == (2, 1)
    assert message in err
