"""GPUs of AMD, which are in no fit, beside what was published of them. Prints Markdown.

Products of XLA's tables; and steps: MLPerf Training 5.0 and 5.1 (Llama-2-70B with adapters, and Llama-3.1-8B), and
those of Primus, with H200 and B200 of the same rounds beside. What a row does not say is stated here and in
docs/accuracy.md.

    python -m scripts.fit.amd_errors --data ../shared/data
"""

from __future__ import annotations

import argparse
import csv
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import fmean, median

import numpy as np
import pandas as pd

from ddlprof.planning.features import count_model
from ddlprof.recommender import Predictor, Target, Workload
from ddlprof.recommender.compute.gpu_peaks import peak_of, peaks_of
from ddlprof.recommender.compute.operator_coefficients import generation_of, shipped
from ddlprof.recommender.compute.operator_time import tensor_rates
from ddlprof.recommender.compute.tensor_time import tensor_product_seconds
from ddlprof.recommender.estimate import Estimate
from ddlprof.recommender.layout import Layout
from ddlprof.recommender.target import default_catalog
from ddlprof.recommender.transformer_job import transformer
from scripts.fit.communication_errors import table
from scripts.fit.layout_cases import MODELS
from scripts.fit.operators_xla import LAUNCH_S, device_groups

RANK = 16
"""Of MLPerf's adapters."""
_GPU = re.compile(r"\b(MI3\d\dX|B200|H200|H100)\b")
_OF_TABLES = {"gfx942": "MI300X", "gfx950": "MI355X"}
_MIXTRAL_8X22B = {
    "layers": 56, "hidden": 6144, "heads": 48, "kv_heads": 8, "ffn": 16384, "vocab": 32768, "experts": 8,
    "experts_per_token": 2, "expert_ffn": 16384,
}  # fmt: skip
_MODELS = {**MODELS, "Llama-3.1-70B": MODELS["LLAMA3_70B"], "Mixtral-8x22B": _MIXTRAL_8X22B}
_MICRO_BATCHES = 8
"""Assumed of Primus' rows, which do not say it: enough to hide what happens once a step."""


@dataclass(frozen=True)
class Compared:
    """A measured step beside the predicted one."""

    source: str
    job: str
    gpu: str
    gpus: int
    precision: str
    measured_s: float
    found: Estimate

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.found.step_s / self.measured_s - 1.0

    @property
    def held(self) -> bool:
        """Whether the measured step lies in the 80 % interval."""
        return self.found.low_s <= self.measured_s <= self.found.high_s

    @property
    def kind(self) -> tuple[str, str, str, int, str]:
        """What rows of the table are of."""
        return self.job, self.gpu, self.source, self.gpus, self.precision


def grouped(found: Iterable[Compared]) -> Iterator[list[str]]:
    """One row for each kind of step."""
    kinds: dict[tuple[str, str, str, int, str], list[Compared]] = {}
    for each in found:
        kinds.setdefault(each.kind, []).append(each)
    for (job, gpu, source, gpus, precision), mine in sorted(kinds.items()):
        measured = sorted(each.measured_s for each in mine)
        span = " to ".join(dict.fromkeys(f"{each:.2f}" for each in (measured[0], measured[-1])))
        held = sum(each.held for each in mine)
        yield [
            job, f"{gpus} {gpu}", source, precision, str(len(mine)), span, f"{mine[0].found.step_s:.2f}",
            f"{median(each.error for each in mine):+.0%}", f"{held} of {len(mine)}",
        ]  # fmt: skip


def products(path: Path) -> Iterator[list[str]]:
    """Errors of XLA's products from the data sheet alone, by device and type."""
    rows, fitted = pd.read_csv(path), shipped()
    for device, model in _OF_TABLES.items():
        machine = peaks_of(default_catalog().gpu(model))
        generation = generation_of(machine.capability, fitted.generations)
        for group in device_groups(rows, (device,)):
            dtype = group.name.split()[1]
            rates = tensor_rates(machine, peak_of(machine, dtype, True), dtype, generation, machine.bandwidth_b_s)
            ratios = (tensor_product_seconds(group.sizes, rates, fitted.tensor) + LAUNCH_S) / group.seconds
            off = np.abs(ratios - 1.0)
            yield [
                device, model, dtype, str(len(off)), f"{off.mean():.1%}", f"{np.median(off):.1%}",
                f"{np.median(ratios):.1%}",
            ]  # fmt: skip


@lru_cache(maxsize=1)
def adapters_job() -> Workload:
    """Llama-2 70B on sequences of 8,192 tokens, counted as it trains whole."""
    return count_model("scripts.jobs.llama:llama_70b", ["int64:8192"], batch=1, precision="bf16").workload()


def with_adapters(rows: Iterable[dict[str, str]]) -> Iterator[Compared]:
    """One machine of eight GPUs, each with a sequence of its own and the whole model: fp8, and no recomputation."""
    for row in rows:
        alone = (row["tp"], row["pp"], row["cp"]) == ("1.0", "1.0", "1.0") and row["gpus"] == "8.0"
        if not row["model"].endswith("LoRA") or not alone or row["precision"] != "fp8" or not row["step_s"]:
            continue
        if (gpu := _gpu(row)) is None:
            continue
        target = Target(gpu_model=gpu, placement=(8,), batch_per_gpu=1, lora=RANK, precision="fp8")
        found = Predictor(adapters_job()).predict(target)
        yield Compared("MLPerf", "Llama-2-70B, adapters", gpu, 8, "fp8", float(row["step_s"]), found)


def pretraining(rows: Iterable[dict[str, str]]) -> Iterator[Compared]:
    """Llama-3.1-8B on eight GPUs. Rows without a precision are taken for fp8."""
    for row in rows:
        gpu, precision = _gpu(row), row["precision"] or "fp8"
        wanted = row["model"] == "Llama-3.1-8B" and row["gpus"] == "8.0" and precision == "fp8" and row["step_s"]
        if gpu is None or not wanted:
            continue
        sequences = int(row["global_batch"]) // 8
        micro = int(float(row["micro_batch"] or 2))
        yield _laid_out("MLPerf", row, gpu, precision, Layout(shard="zero1"), micro, sequences // micro, 8)


def of_primus(rows: Iterable[dict[str, str]]) -> Iterator[Compared]:
    """Published as tokens a second of a GPU, without the micro-batches of a step."""
    for row in rows:
        numbers = {name: int(row[name]) for name in ("tp", "pp", "cp", "ep", "vp", "micro_batch")}
        layout = Layout(
            tensor=numbers["tp"], pipeline=numbers["pp"], context=numbers["cp"], expert=numbers["ep"],
            virtual=numbers["vp"], shard="zero3" if row["dp_shard"] else "zero1",
        )  # fmt: skip
        count = 1 if row["dp_shard"] else 2 * _MICRO_BATCHES if numbers["pp"] > 1 else _MICRO_BATCHES
        yield _laid_out("Primus", row, row["gpu_model"], row["precision"], layout, numbers["micro_batch"], count, 64)


def _laid_out(
    source: str, row: dict[str, str], gpu: str, precision: str, layout: Layout, micro: int, count: int, gpus: int
) -> Compared:
    sizes = {**_MODELS[row["model"]], "seq": int(row["seq"])}
    target = Target(
        gpu_model=gpu, placement=(8,) * (gpus // 8), network_gbps=3200.0, batch_per_gpu=micro, grad_accum=count,
        layout=layout, precision=precision,
    )  # fmt: skip
    found = Predictor(transformer(**sizes, software="megatron")).predict(target)  # type: ignore[arg-type]
    tokens = layout.data_ranks(gpus) * micro * count * sizes["seq"]
    step_s = tokens / gpus / float(row["tokens_per_s_per_gpu"]) if source == "Primus" else float(row["step_s"])
    return Compared(source, row["model"], gpu, gpus, precision, step_s, found)


def _gpu(row: dict[str, str]) -> str | None:
    named = _GPU.search(row["gpu_model"])
    return named[1] if named else None


def _rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with layouts/ and operators/")
    folder = parser.parse_args().data
    header = ["device", "as", "type", "rows", "mean", "median", "ratio"]
    print(table(header, products(folder / "operators" / "matmul_tensor_cores.csv")))
    mlperf = _rows(folder / "layouts" / "mlperf_llm_v5.csv")
    found = [*with_adapters(mlperf), *pretraining(mlperf), *of_primus(_rows(folder / "layouts" / "primus.csv"))]
    header = ["job", "GPUs", "source", "type", "rows", "s, measured", "s, expected", "error", "in 80 % interval"]
    print("\n" + table(header, grouped(found)))
    for maker, first in (("AMD", "M"), ("NVIDIA", "BH")):
        mine = [each for each in found if each.gpu[0] in first]
        off = [abs(each.error) for each in mine]
        held = sum(each.held for each in mine)
        print(f"\n{maker}: {len(mine)} rows, mean {fmean(off):.1%}, median {median(off):.1%}, {held} in their interval")


if __name__ == "__main__":
    main()
