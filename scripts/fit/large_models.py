"""Predictions of large transformers over many GPUs, from the model alone, beside published steps. Prints Markdown.

First the estimates of communication beside the bounds of physics: not shorter than the bytes over the line, not longer
than three times the bytes over the bandwidth of published collectives. Then steps of sharded and of plain data
parallelism that others measured. Nothing of these jobs is in any fit.

    python -m scripts.fit.large_models --data ../shared/data/layouts
"""

from __future__ import annotations

import argparse
import csv
import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from statistics import fmean, median
from typing import Any

from ddlprof.planning.features import count_model
from ddlprof.recommender import Estimate, Predictor, Target, Workload
from ddlprof.recommender.strategy import STRATEGIES
from ddlprof.recommender.target import default_catalog, machine_of
from scripts.fit.communication import BUCKET_S, COLLECTIVES_SHARE, NETWORK_SHARE
from scripts.fit.communication_errors import table

NETWORK_GBPS = {"A100": 1600.0, "H100": 3200.0}
"""The networks of the clusters, where they are not stated: one adapter of the generation for each GPU."""
MOST_NODES = 4
"""On more, much of nanotron's steps is communication, and says little of computation."""
BOUNDED = (
    ("Llama-70B bf16 FSDP, 8 H100", "llama_70b", Target(instance_type="p5.48xlarge", placement=(8,), strategy="fsdp")),
    ("the same, 4 x p5", "llama_70b", Target(instance_type="p5.48xlarge", placement=(8,) * 4, strategy="fsdp")),
    ("Llama-7B FSDP, 8 A100-80", "llama_7b", Target(gpu_model="A100-80GB", placement=(8,), strategy="fsdp")),
    ("Llama-7B DDP, p5", "llama_7b", Target(instance_type="p5.48xlarge", placement=(8,), strategy="ddp")),
)


@dataclass(frozen=True)
class Case:
    """A published step and its target."""

    source: str
    model: str
    seq: int
    checkpointing: bool
    target: Target
    step_s: float
    gradient_bytes: int
    """Bytes of a gradient that is exchanged: 4 where it is accumulated in fp32."""


@lru_cache(maxsize=32)
def job(model: str, seq: int, checkpointing: bool = False) -> Workload:
    """The model as `ddlprof features` counts it, in bf16."""
    counted = count_model(
        f"scripts.jobs.llama:{model}", [f"int64:{seq}"], batch=1, precision="bf16", checkpointing=checkpointing
    )
    return counted.workload()


def cases(folder: Path) -> Iterator[Case]:
    """Data-parallel steps without selective checkpointing of models that are known: InternEvo (7B on up to 128 A100),
    Foundation Model Stack (7B on 128 A100 and 96 H100), nanotron (1.34B on up to 256 H100)."""
    models = {"InternLM-7B": "internlm_7b", "Llama-2-7b": "llama_7b", "llama-like 1B": "llama_1b"}
    for name in ("internevo", "fms_fsdp", "nanotron_ultrascale"):
        for row in _rows(folder / f"{name}.csv"):
            alone = {row["tp"] or "1", row["pp"] or "1", row["cp"] or "1"} == {"1"}
            if row["step_s"] and alone and row["model"] in models:
                yield _case(name, models[row["model"]], row)


def _case(source: str, model: str, row: dict[str, str]) -> Case:
    gpus, micro_batch = int(row["gpus"]), int(row["micro_batch"])
    sharded = {"HSDP": "fsdp", "FSDP": "fsdp"}.get(row["dp_shard"], "zero" if "zero" in row["dp_shard"] else "ddp")
    strategy = "zero" if row.get("zero_stage") == "1" else sharded
    gpu = "A100" if "A100" in row["gpu_model"] else "H100"
    target = Target(
        gpu_model=f"{gpu}-80GB-SXM",
        network_gbps=NETWORK_GBPS[gpu],
        placement=(8,) * (gpus // 8),
        batch_per_gpu=micro_batch,
        grad_accum=int(row["global_batch"]) // (gpus * micro_batch),
        precision="bf16",
        strategy=strategy,
    )
    return Case(
        source, model, int(row["seq"]), row["checkpointing"] == "full", target, float(row["step_s"]),
        4 if "fp32 grad" in row["precision"] else 2,
    )  # fmt: skip


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def bounds_s(workload: Workload, target: Target) -> tuple[float, float]:
    """The shortest and the longest that all communication of an update may take, before any of it is hidden."""
    machine = machine_of(target, default_catalog())
    gpus, nodes = sum(target.placement), len(target.placement)
    size = (workload.gradient_bytes or 0.0) * STRATEGIES[target.strategy or "ddp"].bytes_factor
    on_wire = size * 2.0 * (gpus - 1) / gpus
    line_gb_s = machine.link_gb_s or math.inf
    reached_gb_s = COLLECTIVES_SHARE * line_gb_s
    if nodes > 1 and machine.network_gbps:
        line_gb_s = min(line_gb_s, machine.network_gbps / 8.0)
        reached_gb_s = min(reached_gb_s, NETWORK_SHARE * machine.network_gbps / 8.0)
    leads_s = BUCKET_S * size / 25e6
    return on_wire / line_gb_s / 1e9, 3.0 * (on_wire / reached_gb_s / 1e9 + leads_s)


def bounded_rows() -> Iterator[list[str]]:
    """The estimates beside their bounds."""
    for name, model, target in BOUNDED:
        workload = job(model, 4096)
        found = Predictor(workload).predict(replace(target, precision="bf16"))
        least, most = bounds_s(workload, target)
        yield [
            name, f"{found.step_s:.2f} s", f"{found.interconnect_s:.2f} s", f"{found.network_s:.3f} s",
            f"{least:.2f} to {most:.2f} s", f"{found.high_s / found.low_s:.2f}",
        ]  # fmt: skip


def outcome(case: Case) -> tuple[Case, Estimate]:
    """A case beside its estimate."""
    counted = job(case.model, case.seq, case.checkpointing)
    size = (counted.gradient_bytes or 0.0) * case.gradient_bytes / 2
    return case, Predictor(replace(counted, gradient_bytes=size)).predict(case.target)


def case_rows(outcomes: list[tuple[Case, Estimate]]) -> Iterator[list[str]]:
    """One row for each source, model and number of GPUs."""
    groups: dict[tuple[str, str, str | None, int], list[tuple[Case, Estimate]]] = defaultdict(list)
    for case, found in outcomes:
        groups[case.source, case.model, case.target.gpu_model, sum(case.target.placement)].append((case, found))
    for (source, model, gpu, gpus), mine in groups.items():
        errors = [found.step_s / case.step_s - 1.0 for case, found in mine]
        held = fmean(found.low_s <= case.step_s <= found.high_s for case, found in mine)
        width = median(found.high_s / found.low_s for _, found in mine)
        yield [
            source, model, f"{gpus} {gpu}", str(len(mine)), f"{100 * median(errors):+.0f} %", f"{100 * held:.0f} %",
            f"{width:.2f}",
        ]  # fmt: skip


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the published layouts")
    arguments: Any = parser.parse_args()
    header = ("job", "step", "interconnect", "network", "all communication, bounds", "upper / lower")
    print(table(header, bounded_rows()))
    outcomes = [outcome(case) for case in cases(arguments.data)]
    header_of_cases = ("source", "model", "GPUs", "steps", "median error", "in 80 % interval", "upper / lower")
    print(table(header_of_cases, case_rows(outcomes)))
    errors = [abs(found.step_s / case.step_s - 1.0) for case, found in outcomes]
    print(f"{len(errors)} steps: mean error {fmean(errors):.0%}, median {median(errors):.0%}")
    few = [(case, found) for case, found in outcomes if len(case.target.placement) <= MOST_NODES]
    for source in dict.fromkeys(case.source for case, _ in few):
        logs = [math.log(found.step_s / case.step_s) for case, found in few if case.source == source]
        rms = math.hypot(*logs) / math.sqrt(len(logs))
        print(f"{source}, up to {MOST_NODES} machines: root mean square of logarithms {rms:.2f}")


if __name__ == "__main__":
    main()
