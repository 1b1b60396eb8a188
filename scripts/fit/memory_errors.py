"""The largest batches that sources ran on a GPU, beside the largest that is expected to fit.

Lambda's benchmark chose its batches to fill each GPU; PROFET tried 16, 32, 64, 128 and 256, and where the next one is
missing it did not run. Both are lower bounds of what fits.

    python -m scripts.fit.memory_errors --data ../shared/data/throughput [MODEL...]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd
from torch import nn

from ddlprof.operators.trace_step import Inputs, StepSettings, trace_step
from ddlprof.recommender import Workload
from ddlprof.recommender.compute.memory import USABLE_MEMORY_SHARE, JobMemory
from scripts.fit.published_models import Published, table

SMALL = 2
"""The batch that operators are counted at."""
LAMBDA = {"resnet50_v1.5": "resnet50", "bert_base": "bert_base|384", "bert_large": "bert_large|384"}
GPU_GIB = {
    "K80-12GB": 12, "T4-16GB": 16, "V100-16GB": 16, "RTX3090-24GB": 24, "A100-40GB-PCIe": 40, "RTXA6000-48GB": 48,
    "A100-80GB-PCIe": 80,
}  # fmt: skip


class Row(NamedTuple):
    """The largest batch of one model on one GPU."""

    model: str
    gpu: str
    precision: str
    batch: int


def published(data: Path) -> Iterator[Row]:
    """The rows of both sources."""
    runs = pd.read_csv(data / "train.csv", low_memory=False)
    runs = runs[runs.source.str.startswith("Lambda") & runs.model.isin(LAMBDA) & (runs.total_gpus == 1)]
    for (model, gpu, precision), batches in runs.groupby(["model", "gpu_model", "precision"]).batch_per_gpu:
        yield Row(LAMBDA[model], gpu, "fp32" if precision == "tf32" else precision, int(batches.max()))
    runs = pd.read_csv(data / "single_gpu_aws_train.csv")
    for (model, gpu), batches in runs[runs.image_px == 256].groupby(["model", "gpu_model"]).batch_per_gpu:
        yield Row(f"{model}|256px", gpu, "fp32", int(batches.max()))


def memory_of(network: Published, precision: str) -> JobMemory:
    """The memory of a network as it was trained, ReLU in place as in the sources."""
    model = network.build()
    for module in model.modules():
        if isinstance(module, nn.ReLU):
            module.inplace = True
    optimizer = {"sgd": "sgd-momentum"}.get(network.optimizer, network.optimizer)
    settings = StepSettings(SMALL, precision, f"{optimizer}-fused")
    step = trace_step(model, lambda size: Inputs(list(network.inputs(size)), {}), settings)
    return JobMemory(Workload("published", step=step))


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("models", nargs="*", help="all if none is named")
    asked = parser.parse_args(arguments)
    networks, known = table(), {}
    print("| model | precision | GPU | ran | needs GiB | largest that fits |\n|---|---|---|---:|---:|---:|")
    for row in published(asked.data):
        if row.gpu not in GPU_GIB or row.model not in networks or (asked.models and row.model not in asked.models):
            continue
        key = row.model, row.precision
        if key not in known:
            known[key] = memory_of(networks[row.model], row.precision)
        usable_gib = USABLE_MEMORY_SHARE * GPU_GIB[row.gpu]
        needed_gib, most = known[key].needed_gib(row.batch, 1), known[key].largest_batch(usable_gib, 1)
        print(f"| {row.model} | {row.precision} | {row.gpu} | {row.batch} | {needed_gib:.1f} | {most} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
