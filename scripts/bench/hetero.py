"""`ddlprof plan` on published layer tables: the plan beside the best uniform one on HeteroG's testbed.

    python -m scripts.bench.hetero LAYERS.csv [--check N] [--only MODEL]

LAYERS.csv has a row a layer, with the columns file, model, batch, layer, forward_ns, input_grad_ns, weight_grad_ns and
allreduce_bytes (those of Dally's simulator, github.com/aakash-sharma/cluster-sim, which has no licence: facts only).
Its times are taken for those of a V100, and the other GPUs' follow from them by the recommender. The testbed is that
of HeteroG (CoNEXT 2020): two V100 at 100 Gbit/s, twice two GTX 1080 Ti and two P100 at 50 Gbit/s.

`--check N` also runs the check of `ddlprof plan --check` N times on each model and prints what was predicted and
measured. Nothing else should run: `other work` is the share of the processor that the processes did not have.
"""

from __future__ import annotations

import argparse
import csv
import time
from pathlib import Path
from statistics import median

from ddlprof.extensions.hetero.check.run import check
from ddlprof.extensions.hetero.devices import Devices, GpuNode
from ddlprof.extensions.hetero.predicted import PredictedTimes
from ddlprof.extensions.hetero.problem import GradientBucket, Problem, grouped
from ddlprof.extensions.hetero.search import Plan, make_plan
from ddlprof.recommender import Measurement, Workload

BATCHES = (64, 256, 1024)
V100 = "V100-PCIE-16GB"
PUBLISHED = "up to 222 % faster (HeteroG's abstract)"
REQUIRED = 1.5
_FIRST = 2
"""Layers whose input gradient is left out: it is inflated in this source, and a first layer needs none."""


def testbed() -> Devices:
    """What HeteroG was tried on."""
    return Devices(
        (
            GpuNode("v100", 2, 12.0, 12.5, V100),
            GpuNode("1080ti-1", 2, 12.0, 6.25, "GTX-1080Ti"),
            GpuNode("1080ti-2", 2, 12.0, 6.25, "GTX-1080Ti"),
            GpuNode("p100", 2, 12.0, 6.25, "P100-PCIE-16GB"),
        )
    )


def problems(path: Path, devices: Devices) -> dict[str, dict[int, Problem]]:
    """By model and batch; of each model the table that was measured."""
    tables: dict[str, list[dict[str, str]]] = {}
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["file"].endswith(".csv"):
                tables.setdefault(row["model"], []).append(row)
    return {
        model: {batch: _problem(model, rows, devices, batch) for batch in BATCHES} for model, rows in tables.items()
    }


def _problem(model: str, rows: list[dict[str, str]], devices: Devices, batch: int) -> Problem:
    layer_ns = [
        float(row["forward_ns"])
        + float(row["weight_grad_ns"])
        + (float(row["input_grad_ns"]) if number >= _FIRST else 0.0)
        for number, row in enumerate(rows)
    ]
    whole_ns = sum(layer_ns)
    parts = [
        GradientBucket(row["layer"], float(row["allreduce_bytes"]), ns / whole_ns)
        for row, ns in zip(rows, layer_ns, strict=True)
    ]
    measured = Measurement(
        gpu_model=V100, placement=(1,), batch_per_gpu=int(rows[0]["batch"]), step_s=whole_ns / 1e9,
        compute_s=whole_ns / 1e9,
    )  # fmt: skip
    workload = Workload(
        model, layers=len(rows), gradient_bytes=sum(part.gradient_bytes for part in parts), measurements=[measured]
    )
    return Problem(devices, grouped(parts), batch, PredictedTimes(workload, devices))


def _row(model: str, batch: int, plan: Plan, seconds: float) -> str:
    best = min((each.step.step_s, each.name) for each in plan.uniform if each.step)
    step = plan.best.step
    assert step is not None
    assert plan.gain is not None
    used, servers = len(plan.best.strategy.used), sum(each is not None for each in plan.best.strategy.servers)
    return (
        f"{model:12} {batch:5}  {step.step_s * 1e3:8.1f} ms  {best[0] * 1e3:8.1f} ms  {best[1]:27}"
        f" {plan.gain:5.2f}  {used} GPUs, {servers} of {len(plan.problem.groups)} groups by servers"
        f"  {seconds:4.1f} s"
    )


def main() -> None:
    """Prints a row for each model and batch, and what the checks measured."""
    parser = argparse.ArgumentParser()
    parser.add_argument("layers", type=Path)
    parser.add_argument("--check", type=int, default=0)
    parser.add_argument("--only", help="this model")
    asked = parser.parse_args()
    found = {name: each for name, each in problems(asked.layers, testbed()).items() if asked.only in (None, name)}
    gains = []
    print(f"{'model':12} {'batch':>5}  {'plan':>11}  {'best of the four':>11}  {'':27} gain")
    for model, by_batch in found.items():
        for batch, problem in by_batch.items():
            begin = time.process_time()
            plan = make_plan(problem)
            print(_row(model, batch, plan, time.process_time() - begin))
            gains.append((plan.gain or 0.0, model))
    worst, best = min(gains), max(gains)
    bound = sorted({model for gain, model in gains if gain >= REQUIRED})
    print(f"gain: least {worst[0]:.3f} (required: 1), largest {best[0]:.2f} ({best[1]}); published: {PUBLISHED}")
    print(f"at least {REQUIRED} times: {', '.join(bound)} (required: two models)")
    if asked.check:
        _check({model: by_batch[BATCHES[0]] for model, by_batch in found.items()}, asked.check)


def _check(found: dict[str, Problem], times: int) -> None:
    checks = []
    for model, problem in found.items():
        for _ in range(times):
            each = check(problem)
            checks.append(each)
            splits = ", ".join(
                f"{split.name} {split.predicted_s * 1e3:.0f} / {split.measured_s * 1e3:.0f} ms = {split.ratio:.2f}"
                for split in each.splits
            )
            print(
                f"check {model}: {splits}; off by {each.worst:.0%} at most; by speed {each.gain:.2f} x even;"
                f" other work {1 - each.processor_share:.0%}"
            )
    gain = median(each.gain for each in checks)
    print(f"off by {max(each.worst for each in checks):.0%} at most (required: 20 %)")
    print(f"by speed {gain:.2f} x even (median; required: 1.2)")


if __name__ == "__main__":
    main()
