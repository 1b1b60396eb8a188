# huggingface/transformers#3634 deepspeedai/DeepSpeedExamples#849: padded to max_length; cure: to the longest of a batch
from __future__ import annotations

import random

import torch
from own_clock import FAULT, OwnClock
from torch import nn
from torch.utils.data import DataLoader, Dataset

WORDS, MAX_LENGTH, PAD = 2_000, 160, 0


class Sentences(Dataset):  # type: ignore[type-arg]
    def __init__(self, n: int) -> None:
        rng = random.Random(0)
        self.ids = [[rng.randrange(1, WORDS) for _ in range(rng.randrange(12, 40))] for _ in range(n)]

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict[str, list[int] | int]:
        ids = self.ids[index]
        return {"input_ids": ids, "label": sum(ids) % 2}


def collate(features: list[dict]) -> dict[str, torch.Tensor]:  # type: ignore[type-arg]
    longest = MAX_LENGTH if FAULT else max(len(f["input_ids"]) for f in features)
    ids = [f["input_ids"] + [PAD] * (longest - len(f["input_ids"])) for f in features]
    input_ids = torch.tensor(ids)
    return {"input_ids": input_ids, "mask": input_ids == PAD, "labels": torch.tensor([f["label"] for f in features])}


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, 64, PAD), nn.Embedding(MAX_LENGTH, 64)
        layer = nn.TransformerEncoderLayer(64, 4, 128, 0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(64, 2)

    def forward(self, input_ids: torch.Tensor, mask: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.words(input_ids) + self.places.weight[: input_ids.shape[1]]
        x = self.encoder(x, src_key_padding_mask=mask)
        return nn.functional.cross_entropy(self.head(x[:, 0]), labels)


class Trainer:
    def __init__(self, model: nn.Module, data: Dataset) -> None:  # type: ignore[type-arg]
        self.model, self.optimizer = model, torch.optim.AdamW(model.parameters(), 1e-4)
        self.loader = DataLoader(data, 4, shuffle=True, collate_fn=collate)
        self.clock = OwnClock()

    def training_step(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        self.model.train()
        loss: torch.Tensor = self.model(**inputs)
        loss.backward()
        return loss.detach()

    def train(self) -> None:
        for inputs in self.loader:
            self.training_step(inputs)
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.clock.step()
        self.clock.done()


if __name__ == "__main__":
    torch.set_num_threads(1)
    Trainer(Classifier(), Sentences(320)).train()
