"""Reads the other published measurements as cases of scaling: the same job on one GPU and on several."""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from ddlprof.recommender.target import Target
from ddlprof.recommender.workload import Measurement, Workload

IN_PLACEMENTS = ("Pollux OSDI21", "Sia SOSP23")
"""Sources whose placements `_placements` reads."""
LEFT_OUT = ("wide_and_deep_outbrain", "bart_large")
"""The gradients of embeddings are sparse or not exchanged; the time is of one sample, not of an update."""
_DATA_PARALLEL = re.compile(r"DP( \(all-reduce\))?$")


@dataclass(frozen=True)
class ScalingCase:
    """One model on some number of GPUs of one machine kind, its step and that on one GPU: medians over batches."""

    source: str
    model: str
    gpu_model: str
    interconnect: str
    network_gbps: float | None
    precision: str
    gpus: int
    nodes: int
    batch_per_gpu: int
    grad_accum: int
    alone_s: float
    step_s: float
    gradient_bytes: float
    tensors: int | None

    @property
    def workload(self) -> Workload:
        """The job with its one-GPU time."""
        alone = Measurement(
            placement=(1,), batch_per_gpu=self.batch_per_gpu, step_s=self.alone_s, precision=self.precision,
            grad_accum=self.grad_accum, gpu_model=self.gpu_model,
            interconnect=self.interconnect or None, network_gbps=self.network_gbps,
        )  # fmt: skip
        return Workload(
            name=self.model, parameter_tensors=self.tensors, gradient_bytes=self.gradient_bytes, measurements=[alone]
        )

    @property
    def target(self) -> Target:
        """The same machines, more of their GPUs."""
        return Target(
            placement=(self.gpus // self.nodes,) * self.nodes,
            batch_per_gpu=self.batch_per_gpu,
            precision=self.precision,
            grad_accum=self.grad_accum,
            gpu_model=self.gpu_model,
            interconnect=self.interconnect or None,
            network_gbps=self.network_gbps,
        )


def read_scaling(folder: Path) -> list[ScalingCase]:
    """Data-parallel jobs of `train.csv` with a one-GPU time at the same batch and a model whose gradients are counted.

    Ratios outside 0.9 to 5 are left out: their one-GPU run was another job, or limited by its host.
    """
    with (folder / "models.csv").open(newline="", encoding="utf-8") as file:
        counts = {row["model"]: row for row in csv.DictReader(file) if row["gradient_mb_fp32"]}
    times: dict[tuple[str, ...], dict[tuple[int, int], list[float]]] = defaultdict(lambda: defaultdict(list))
    fields = (
        "source", "model", "gpu_model", "intra_node_interconnect", "network_gbps", "precision", "batch_per_gpu",
        "grad_accum", "seq_len", "system",
    )  # fmt: skip
    with (folder / "train.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            known = (
                row["model"] in counts
                and row["model"] not in LEFT_OUT
                and row["step_time_s"]
                and row["total_gpus"]
                and row["gpu_model"]
            )
            if known and row["source"] not in IN_PLACEMENTS and _DATA_PARALLEL.match(row["parallelism"]):
                at = int(float(row["total_gpus"])), int(float(row["nodes"] or 1))
                times[tuple(row[field] for field in fields)][at].append(float(row["step_time_s"]))
    cases = []
    for key, by_gpus in times.items():
        if (1, 1) in by_gpus:
            alone_s = median(by_gpus.pop((1, 1)))
            cases += [
                _case(key, at, alone_s, median(steps), counts[key[1]])
                for at, steps in by_gpus.items()
                if 0.9 <= median(steps) / alone_s <= 5.0
            ]
    return cases


def _case(
    key: tuple[str, ...], at: tuple[int, int], alone_s: float, step_s: float, counts: dict[str, str]
) -> ScalingCase:
    source, model, gpu_model, interconnect, network, precision, batch, grad_accum = key[:8]
    return ScalingCase(
        source=source,
        model=model,
        gpu_model=re.sub(r"\(.*\)", "", gpu_model),
        interconnect=interconnect,
        network_gbps=float(network) if network else None,
        precision="amp" if precision.startswith(("amp", "pure")) else precision.split("+")[0] or "fp32",
        gpus=at[0],
        nodes=at[1],
        batch_per_gpu=max(1, int(float(batch or 1))),
        grad_accum=int(float(grad_accum or 1)),
        alone_s=alone_s,
        step_s=step_s,
        gradient_bytes=float(counts["gradient_mb_fp32"]) * 1e6,
        tensors=int(float(counts["param_tensors"])) if counts["param_tensors"] else None,
    )
