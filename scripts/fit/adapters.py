"""LoRA and QLoRA asked of models that were counted without, beside what LitGPT measured on one A100. Prints Markdown.

The model is counted as it trains whole, and adapters are asked of it as `ddlprof predict --lora 8` does: on all linear
layers but the logits, where LitGPT has them on queries and values. The longest sample is published, and decides the
memory; the mean one, which decides the time, is not, and assumed.

    python -m scripts.fit.adapters ../shared/data/layouts/litgpt.csv
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import fmean
from typing import Any

from ddlprof.planning.features import count_model
from ddlprof.recommender import Predictor, Target, Workload
from ddlprof.recommender.compute.memory import JobMemory
from ddlprof.recommender.compute.step_parts import Changes
from scripts.fit.communication_errors import table

MODELS = {
    ("phi-1.5", "1300000000"): ("scripts.jobs.parallel_blocks:phi_1_5", 1044),
    ("StableLM Alpha", "3000000000"): ("scripts.jobs.parallel_blocks:stablelm_3b", 1034),
    ("Llama 2", "7000000000"): ("scripts.jobs.llama:llama_7b", 1304),
    ("Llama 2", "13000000000"): ("scripts.jobs.llama:llama_13b", 1304),
}
"""The models, and the tokens of the longest sample of Alpaca in each one's tokens (LitGPT's resource tables)."""
MEAN_TOKENS = 150
"""Assumed: a sample of Alpaca has about so many with its prompt. Steps of one sample hardly depend on it."""
RANK, GLOBAL_BATCH, CAPACITY_GB = 8, 128, 40.0
SECTION = "Finetuning with LoRA on 1 GPU"
"""The rows of several GPUs have their number in place of the memory, and those of adapters train something else."""


@dataclass(frozen=True)
class Case:
    """A row: the model, how its weights are held, its micro-batch, and what was measured of it."""

    model: str
    factory: str
    tokens: int
    in_four_bits: bool
    batch: int
    memory_gb: float | None
    """None: it did not fit into 40 GB."""
    seconds: float | None
    """Of a micro-batch."""

    @property
    def asked(self) -> dict[str, Any]:
        """The adapters asked for."""
        return {"qlora" if self.in_four_bits else "lora": RANK}


def cases(path: Path) -> Iterator[Case]:
    """The rows of one GPU. Of NF4 the doubly quantised form is taken, which is what QLoRA means."""
    for row in csv.DictReader(path.read_text(encoding="utf-8").splitlines()):
        known = MODELS.get((row["model"], row["params"]))
        if row["section"] != SECTION or known is None or row["precision"].endswith("nf4"):
            continue
        yield Case(
            f"{row['model']} {float(row['params']) / 1e9:g}B", *known, row["precision"].endswith("nf4-dq"),
            int(row["micro_batch"]), float(row["memory_gb"]) if row["memory_gb"] else None,
            float(row["step_s"]) if row["step_s"] else None,
        )  # fmt: skip


@lru_cache(maxsize=16)
def job(factory: str, tokens: int) -> Workload:
    """The model as it trains whole, in bf16."""
    return count_model(factory, [f"int64:{tokens}"], batch=1, precision="bf16").workload()


def expected_gb(case: Case) -> float:
    """The most memory of the allocator, which is what LitGPT prints."""
    asked = JobMemory(job(case.factory, case.tokens), changes=Changes(**case.asked))
    need = asked.need(case.batch, 1, GLOBAL_BATCH // case.batch)
    assert need is not None
    return (need.bytes - need.context) / 1e9


def expected_s(case: Case) -> tuple[float, bool]:
    """The seconds of a micro-batch, and whether the measured one lies in the 80 % interval."""
    passes = GLOBAL_BATCH // case.batch
    target = Target(gpu_model="A100-SXM4-40GB", batch_per_gpu=case.batch, grad_accum=passes, **case.asked)
    found = Predictor(job(case.factory, MEAN_TOKENS)).predict(target)
    held = case.seconds is not None and found.low_s <= case.seconds * passes <= found.high_s
    return found.step_s / passes, held


def rows(found: Iterable[Case], errors: dict[str, list[float]]) -> Iterator[list[str]]:
    """One row a case; notes its errors by what they are of."""
    for case in found:
        gb, (seconds, held) = expected_gb(case), expected_s(case)
        kind = "QLoRA" if case.in_four_bits else "LoRA"
        if case.memory_gb is not None:
            errors.setdefault(f"{kind}, memory", []).append(gb / case.memory_gb - 1.0)
        if case.seconds is not None:
            errors.setdefault(f"{kind}, time", []).append(seconds / case.seconds - 1.0)
            errors.setdefault("in 80 % interval", []).append(float(held))
        measured = f"{case.memory_gb:.2f}" if case.memory_gb is not None else f"over {CAPACITY_GB:.0f}"
        yield [
            case.model, kind, str(case.batch), measured, f"{gb:.2f}",
            f"{1e3 * case.seconds:.0f}" if case.seconds is not None else "", f"{1e3 * seconds:.0f}",
        ]  # fmt: skip


def main(path: Path) -> None:
    """Prints the table and the mean errors."""
    errors: dict[str, list[float]] = {}
    header = ("model", "adapters", "batch", "GB, measured", "GB, expected", "ms, measured", "ms, expected")
    print(table(header, rows(cases(path), errors)))
    held = errors.pop("in 80 % interval")
    for name, each in errors.items():
        print(
            f"{name}: {len(each)} rows, mean error {fmean(map(abs, each)):.1%}, mean of signed ones {fmean(each):+.1%}"
        )
    print(f"times in their 80 % interval: {sum(held):.0f} of {len(held)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
