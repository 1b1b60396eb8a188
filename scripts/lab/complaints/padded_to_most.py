# huggingface/transformers#3634 deepspeedai/DeepSpeedExamples#849: padded to max_length; cure: to the longest of a batch
from __future__ import annotations

import random
from typing import Any

import torch
from own_clock import FAULT, OwnClock
from torch import nn
from torch.utils.data import DataLoader

WORDS, MAX_LENGTH, PAD = 2_000, 160, 0


def sentence() -> list[int]:
    return [random.randrange(1, WORDS) for _ in range(random.randrange(12, 40))]


def collate(sentences: list[list[int]]) -> dict[str, torch.Tensor]:
    longest = MAX_LENGTH if FAULT else max(map(len, sentences))
    input_ids = torch.tensor([ids + [PAD] * (longest - len(ids)) for ids in sentences])
    return {"input_ids": input_ids, "mask": input_ids == PAD, "labels": torch.tensor([sum(s) % 2 for s in sentences])}


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, 64, PAD), nn.Embedding(MAX_LENGTH, 64)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, 128, 0.1, batch_first=True), 2)
        self.head = nn.Linear(64, 2)

    def forward(self, input_ids: torch.Tensor, mask: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.words(input_ids) + self.places.weight[: input_ids.shape[1]]
        x = self.encoder(x, src_key_padding_mask=mask)
        return nn.functional.cross_entropy(self.head(x[:, 0]), labels)


if __name__ == "__main__":
    torch.set_num_threads(1)
    data: Any = [sentence() for _ in range(320)]
    loader: DataLoader[Any] = DataLoader(data, batch_size=4, collate_fn=collate)
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    clock = OwnClock()
    for inputs in loader:
        model(**inputs).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        clock.step()
    clock.done()
