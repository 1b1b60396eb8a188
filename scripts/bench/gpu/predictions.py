"""Experiments on a GPU about what is predicted of it: steps and memory of ten models, and speeds of operators."""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Callable, Iterator
from typing import Any

from ddlprof.instance_catalog import CatalogError
from ddlprof.planning.features import count_model
from ddlprof.recommender import PredictionError, Predictor, Target, Workload
from ddlprof.recommender.compute.gpu_peaks import peak_of, peaks_of
from ddlprof.recommender.compute.kernel_time import Sizes
from ddlprof.recommender.compute.memory import JobMemory
from ddlprof.recommender.compute.operator_coefficients import generation_of, shipped
from ddlprof.recommender.compute.operator_time import tensor_rates
from ddlprof.recommender.compute.tensor_time import tensor_product_seconds
from ddlprof.recommender.target import default_catalog
from scripts.bench.gpu.experiment import JOBS, Bench, Bound, Failed, call, python

REHEARSED_AS = "H100-SXM5-80GB"
"""The GPU whose predictions a rehearsal makes, to see that they can be made."""
HALVES = {
    1: ("resnet50", "gpt_small", "launches", "perceptron", "vit"),
    2: ("gpt_medium", "lstm", "unet", "resnet26", "wide_resnet50"),
}
"""The ten models in two experiments; the first has one of each kind."""
_COUNTED_AS = {"fp32": "fp32", "tf32": "fp32", "bf16": "amp-bf16"}


def steps(half: int) -> Callable[[Bench], None]:
    """Five models."""

    def run(bench: Bench) -> None:
        rows = list(_rows(bench, half, "fp32,tf32,bf16", bench.pick(20, 10, 2)))
        errors: dict[str, list[float]] = {}
        held = []
        for row, work in rows:
            target = Target(gpu_model=row["gpu"], placement=(1,), batch_per_gpu=row["batch"], precision=_asked(row))
            found = Predictor(work).predict(target)
            error = found.step_s / row["step_s"] - 1
            held.append(found.low_s <= row["step_s"] <= found.high_s)
            label = f"{row['model']} {row['precision']} {row['batch']}"
            bench.figure(f"{label}: ms", 1e3 * row["step_s"])
            bench.figure(f"{label}: error", error)
            for group in (row["precision"], row["size"], "all"):
                errors.setdefault(group, []).append(abs(error))
        if not rows:
            raise Failed("no model was measured")
        for group, each in errors.items():
            bench.figure(f"{group}: median error", statistics.median(each))
        bench.figure("all: mean error", statistics.fmean(errors["all"]), Bound(0.25))
        bench.figure("in 80 % interval", sum(held) / len(held), Bound(0.7, at_least=True))

    run.__doc__ = f"Predicted and measured steps in fp32, tf32 and bf16, two batches each: {', '.join(HALVES[half])}"
    return run


def memory(half: int) -> Callable[[Bench], None]:
    """Five models."""

    def run(bench: Bench) -> None:
        off = []
        for row, work in _rows(bench, half, "fp32,bf16", 2):
            need = JobMemory(work, precision=_asked(row)).need(row["batch"], 1)
            if need is None or not row.get("allocated"):
                continue
            label = f"{row['model']} {row['precision']} {row['batch']}"
            error = (need.bytes - need.context) / row["allocated"] - 1
            off.append(abs(error))
            bench.figure(f"{label}: GiB", row["allocated"] / 2**30)
            bench.figure(f"{label}: reserved GiB", row["reserved"] / 2**30)
            bench.figure(f"{label}: error", error)
        if off:
            bench.figure("mean error", statistics.fmean(off), Bound(0.15))
        elif bench.rehearse:
            bench.note("its models run on the host, which has no allocator of a device")
        else:
            raise Failed("no model's memory was measured")

    run.__doc__ = f"Expected memory against the allocator's peak: {', '.join(HALVES[half])}"
    return run


def _asked(row: dict[str, Any]) -> str:
    return "amp-bf16" if row["precision"] == "bf16" else str(row["precision"])


def _rows(bench: Bench, half: int, precisions: str, count: int) -> Iterator[tuple[dict[str, Any], Workload]]:
    """What was measured, each row with the job that is predicted; what failed is a note."""
    names = HALVES[half][:2] if bench.rehearse else HALVES[half]
    truth = bench.job("ten", models=",".join(names), precisions=precisions, steps=count).truth
    gpu = _known(truth["device"]) or (REHEARSED_AS if bench.rehearse else None)
    if gpu is None:
        raise Failed(f"the catalogue does not know {truth['device']!r}")
    counted: dict[tuple[str, str, int], Workload] = {}
    for row in truth["rows"]:
        if "error" in row:
            bench.note(f"{row['model']} {row['precision']} {row['batch']}: {row['error']}")
            continue
        key = row["model"], _COUNTED_AS[row["precision"]], row["batch"]
        if key not in counted:
            counted[key] = _count(*key, rehearse=bench.rehearse)
        sizes = [other["batch"] for other in truth["rows"] if other["model"] == row["model"]]
        size = "small batch" if row["batch"] == min(sizes) else "large batch"
        yield {**row, "gpu": gpu, "size": size}, counted[key]


def _known(name: str) -> str | None:
    try:
        return default_catalog().gpu(name).gpu_model
    except CatalogError:
        return None


def _count(name: str, precision: str, batch: int, rehearse: bool) -> Workload:
    """The job as `ddlprof features` counts it, without running it."""
    if str(JOBS) not in sys.path:
        sys.path.insert(0, str(JOBS))
    if rehearse:
        os.environ.setdefault("GPU_REHEARSAL", "host")
    from ten_models import MODELS

    made = count_model(f"ten_models:{name}", [MODELS[name].sample], batch=batch, precision=precision)
    return made.workload()


def probe(bench: Bench) -> None:
    """What `ddlprof probe` reaches on this GPU beside what predictions take from its data sheet and the fit."""
    kept = bench.folder / "probe.json"
    seconds = bench.pick(30, 15, 2)
    words = [python(), "-m", "ddlprof", "probe", "--dry-run", "--quiet", f"--seconds={seconds}", "-o", str(kept)]
    code, said = call(words, bench.environment(), bench.left_s, bench.folder / "probe")
    if code:
        raise Failed(f"probe ended with {code}: {said[-200:]}")
    found = json.loads(kept.read_text(encoding="utf-8"))
    figures = {each["key"]: each["value"] for each in found["figures"]}
    gpu = _known(found["device"])
    if gpu is None:
        bench.note(f"not in the catalogue: {found['device']}")
    for key, value in figures.items():
        bench.figure(key, value)
        expected = None if gpu is None else _expected(gpu, key)
        if expected is not None:
            bench.figure(f"{key}: expected over probed", expected / value)
    bench.figure("figures", len(figures), Bound(5, at_least=True))


def _expected(gpu: str, key: str) -> float | None:
    """What predictions take a large product to reach (TFLOP/s), or a stream of memory (GB/s); None for the others."""
    machine, fitted = peaks_of(default_catalog().gpu(gpu)), shipped()
    generation = generation_of(machine.capability, fitted.generations)
    reached = machine.bandwidth_b_s * fitted.streams.memory[machine.memory] * generation.memory
    if key == "memory_gb_s":
        return reached / 1e9
    dtype = key.removesuffix("_tflops")
    if dtype not in ("tf32", "bf16", "fp16", "fp8"):
        return None
    import numpy as np

    try:
        peak = peak_of(machine, "fp32" if dtype == "tf32" else dtype, dtype == "tf32")
    except PredictionError:
        return None
    side = np.array([8192.0])
    rates = tensor_rates(machine, peak, dtype, generation, reached)
    sizes = Sizes(np.ones(1), side, side, side, rates.element_bytes * 3 * side**2)
    return float(2 * 8192.0**3 / tensor_product_seconds(sizes, rates, fitted.tensor)[0] / 1e12)
