"""What the manifest says of the model and the batch of real training."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from ddlprof.model.manifest import Manifest
from tests.integration.hooks.conftest import Profile, Profiling


def manifest(profile: Profile) -> Manifest:
    return Manifest.read(profile.directory)


class Words(nn.Module):
    """PyTorch's word_language_model: [time, batch]."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.embedding, self.body = nn.Embedding(50, 8), body

    def forward(self, x: torch.Tensor) -> Any:
        y = self.body(self.embedding(x))
        return y[0] if isinstance(y, tuple) else y


class Recognise(nn.Module):
    """Images to sequences: it turns its input round for a layer that takes [time, batch]."""

    def __init__(self) -> None:
        super().__init__()
        self.look, self.read = nn.Conv2d(1, 4, 3), nn.LSTM(4, 4)

    def forward(self, x: torch.Tensor) -> Any:
        return self.read(self.look(x).mean(2).permute(2, 0, 1))[0]


def train(model: nn.Module, inputs: Any, steps: int = 6) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()


def test_the_batch_of_sequences(profiling: Profiling) -> None:
    words = torch.zeros(35, 20, dtype=torch.long)
    attention = nn.TransformerEncoderLayer(8, 2, 16)
    batches = []
    for model, inputs in (
        (Words(nn.LSTM(8, 8)), words),
        (Words(attention), words),
        (Words(nn.GRU(8, 8, batch_first=True)), words),
        (Recognise(), torch.zeros(6, 1, 8, 12)),
    ):
        with profiling() as profile:
            train(model, inputs)
        batches.append(manifest(profile).training.batch_per_rank)
    assert batches == [20, 20, 35, 6]


@pytest.mark.parametrize(
    ("freezes", "teaches", "frozen"), [(False, False, False), (True, False, True), (False, True, True)]
)
def test_frozen_layers_and_teachers(freezes: bool, teaches: bool, frozen: bool, profiling: Profiling) -> None:
    model, teacher, x = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), nn.Linear(4, 4), torch.ones(2, 4)
    model[0].requires_grad_(not freezes)
    with profiling() as profile:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(6):
            with torch.no_grad():
                target = teacher(x) if teaches else x
            (model(x) - target).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert manifest(profile).model.frozen is frozen


def test_the_loader_knows_its_samples(profiling: Profiling) -> None:
    texts = [torch.zeros(5 + number % 9, dtype=torch.long) for number in range(50)]
    with profiling() as profile:
        model = Words(nn.GRU(8, 8))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for batch in DataLoader(texts, batch_size=8, collate_fn=pad_sequence):  # type: ignore[arg-type]
            optimizer.zero_grad()
            model(batch).mean().backward()
            optimizer.step()
    assert [row.samples for row in profile.rows] == [8] * 6 + [2]
    assert (manifest(profile).training.batch_per_rank, manifest(profile).training.global_batch) == (8, 8)


def test_a_generator_and_its_discriminator(profiling: Profiling) -> None:
    class Generator(nn.Linear):
        pass

    class Discriminator(nn.Linear):
        pass

    with profiling() as profile:
        generator, discriminator = Generator(4, 8), Discriminator(8, 1)
        perceptual = nn.Linear(8, 64).requires_grad_(False)
        both = torch.optim.Adam(generator.parameters()), torch.optim.Adam(discriminator.parameters())
        for (x,) in DataLoader(TensorDataset(torch.ones(60, 8)), batch_size=10):
            fake = generator(x[:, :4])
            (discriminator(x) - discriminator(fake.detach())).mean().backward()
            both[1].step()
            (discriminator(fake).mean() + perceptual(fake).mean()).backward()
            both[0].step()
    facts = manifest(profile).model
    assert facts.name == "Generator + Discriminator"
    assert (facts.layers, facts.parameter_tensors, facts.parameters) == (2, 4, 40 + 9)
    assert facts.gradient_bytes == 4 * (40 + 9)


def test_a_model_that_is_gone_at_the_end_is_not_forgotten(profiling: Profiling) -> None:
    with profiling() as profile:
        first, second = nn.Linear(4, 4), nn.Linear(9, 9)
        optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
        for _ in range(6):
            (first(torch.ones(2, 4)).sum() + second(torch.ones(2, 9)).sum()).backward()
            optimizer.step()
        profile.session.helper.stop()
        del second, optimizer
    assert manifest(profile).model.parameters == 20 + 90


class Reader(nn.Module):
    """A small language model; its last block is computed again in the backward."""

    def __init__(self, again: bool) -> None:
        super().__init__()
        self.embedding, self.block, self.head = nn.Embedding(50, 8), nn.Linear(8, 8), nn.Linear(8, 50)
        self.again = again

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> torch.Tensor:
        x = self.embedding(input_ids)
        x = checkpoint(self.block, x, use_reentrant=False) if self.again else self.block(x)
        return self.head(torch.relu(x))  # type: ignore[no-any-return]


SHOWS_WHAT_IS_REPEATED = pytest.mark.skipif(torch.__version__ < "2.11", reason="see docs/compatibility.md")


def padded(samples: list[int]) -> dict[str, torch.Tensor]:
    """Sample n has n tokens."""
    ids = pad_sequence([torch.ones(n, dtype=torch.long) for n in samples], batch_first=True)
    return {"input_ids": ids, "attention_mask": (ids != 0).long()}


@pytest.mark.parametrize("again", [False, pytest.param(True, marks=SHOWS_WHAT_IS_REPEATED)])
def test_tokens_padding_and_what_is_computed_again(again: bool, profiling: Profiling) -> None:
    with profiling() as profile:
        model = Reader(again)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for batch in DataLoader([2, 4, 6, 8] * 6, batch_size=4, collate_fn=padded):  # type: ignore[arg-type]
            model(**batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    found = manifest(profile)
    assert found.training.batch_per_rank == 4
    assert found.training.tokens_per_sample == 8
    assert found.training.padding_share == pytest.approx(1 - (2 + 4 + 6 + 8) / 32)
    block, head = 2 * 8 * 8 * 8, 2 * 8 * 8 * 50
    assert found.model.recomputed_flops_per_sample == (block if again else 0)
    assert found.model.forward_flops_per_sample == block + head
    assert found.model.backward_flops_per_sample == 2 * (block + head) + (block if again else 0)


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("retain", [False, True])
def test_graphs_that_outlive_their_step(keep: bool, retain: bool, profiling: Profiling) -> None:
    kept: list[Any] = []
    with profiling() as profile:
        model = torch.nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(20):
            loss = model(torch.ones(2, 4)).square().mean()
            loss.backward(retain_graph=retain)
            optimizer.step()
            kept.append(model(torch.ones(1, 4)).sum() if keep else loss.item())
    training = manifest(profile).training
    assert training.kept_graphs == (3 if keep else 0)  # those of the first step were made after it
    assert training.retained_graphs is (retain and not keep)
