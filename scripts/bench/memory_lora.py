"""The memory of LoRA that ddlprof expects of Llama 2, against what LitGPT published for one A100 (layouts/litgpt.csv).

Here the model itself has adapters where LitGPT has them, on queries and values; `scripts.fit.adapters` asks for
adapters of a model that was counted without.

    python -m scripts.bench.memory_lora ../shared/data/layouts/litgpt.csv
"""

from __future__ import annotations

import csv
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ddlprof.operators.trace_step import Inputs, StepSettings, trace_step
from ddlprof.recommender import Workload
from ddlprof.recommender.compute.memory import JobMemory

_MODELS = {7e9: "llama_7b", 13e9: "llama_13b"}
"""The models of `scripts/jobs/llama.py` by the parameters of the source."""
_RANK, _TOKENS = 8, 1304
"""The longest sample of Alpaca in Llama's tokens (LitGPT's resource tables), which decides the peak."""


class Lora(nn.Module):
    """A frozen layer and two thin ones that are trained beside it."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.in_features, _RANK, bias=False, dtype=base.weight.dtype)
        self.up = nn.Linear(_RANK, base.out_features, bias=False, dtype=base.weight.dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Both together."""
        added: Tensor = self.base(x) + 2 * self.up(self.down(functional.dropout(x, 0.05, self.training)))
        return added


def adapted(parameters: float) -> nn.Module:
    """Llama 2 with LoRA on queries and values."""
    model: Any = getattr(import_module("scripts.jobs.llama"), _MODELS[parameters])()
    model.requires_grad_(False)
    with torch.device("meta"):
        for block in model.blocks:
            block.query, block.value = Lora(block.query), Lora(block.value)
    return model  # type: ignore[no-any-return]


def expected(parameters: float, batch: int) -> float:
    """The bytes at a batch of samples of `_TOKENS` tokens."""

    def inputs(size: int) -> Inputs:
        return Inputs([torch.empty((size, _TOKENS), dtype=torch.int64)], {})

    step = trace_step(adapted(parameters), inputs, StepSettings(1, "bf16"))
    need = JobMemory(Workload("", step=step)).need(batch, 1)
    assert need is not None
    return need.bytes - need.context


def main(path: str) -> None:
    """Prints the table."""
    rows = csv.DictReader(Path(path).read_text(encoding="utf-8").splitlines())
    measured = {
        (float(row["params"]), int(row["micro_batch"])): 1e9 * float(row["memory_gb"])
        for row in rows
        if row["model"] == "Llama 2" and row["precision"] == "bf16 None" and row["memory_gb"]
        and row["section"] == "Finetuning with LoRA on 1 GPU"
    }  # fmt: skip
    print("| model | batch | measured GB | expected GB |")
    print("|---|---:|---:|---:|")
    for (parameters, batch), found in measured.items():
        guess = expected(parameters, batch)
        print(f"| Llama 2, {parameters / 1e9:.0f}B | {batch} | {found / 1e9:.2f} | {guess / 1e9:.2f} |")


if __name__ == "__main__":
    main(sys.argv[1])
