"""transformers' Trainer on a small GPT-2 with random weights and tokens."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed
from written import write

STEPS, BATCH, LENGTH = 40, 4, 32
WORLD = int(os.environ.get("WORLD_SIZE", "1"))


class Tokens(Dataset[dict[str, Any]]):
    """Random ones."""

    def __len__(self) -> int:
        return STEPS * BATCH * WORLD

    def __getitem__(self, index: int) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(index)
        ids = torch.randint(500, (LENGTH,), generator=generator)
        return {"input_ids": ids, "labels": ids}


def main() -> None:
    set_seed(0)
    torch.set_num_threads(1)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=500, n_positions=LENGTH, n_embd=128, n_layer=2, n_head=2))
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            per_device_train_batch_size=BATCH,
            num_train_epochs=1,
            report_to=[],
            use_cpu=True,
            save_strategy="no",
            logging_steps=10,
            disable_tqdm=True,
        )
        trainer = Trainer(model, arguments, train_dataset=Tokens())
        trainer.train()
    if trainer.is_world_process_zero():
        write(trainer.state.global_step, model.state_dict())


if __name__ == "__main__":
    main()
