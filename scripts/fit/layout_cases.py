"""Published steps of large transformers under layouts, as cases to predict. Rows that say too little are left out."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from ddlprof.instance_catalog import Gpu
from ddlprof.recommender.architecture import Transformer
from ddlprof.recommender.layout import Layout
from ddlprof.recommender.layouts.links import Fabric, fabric_of
from ddlprof.recommender.target import Target, default_catalog, machine_of
from ddlprof.recommender.transformer_job import transformer

NETWORK_GBPS = {
    "A100": 1600.0,
    "H100": 3200.0,
    "H200": 3200.0,
    "B200": 3200.0,
    "B300": 6400.0,
    "GB200": 1600.0,
    "GB300": 3200.0,
}
"""Networks of machines that their sources do not state: one adapter of the generation for each GPU."""
_SMALL_MACHINES = {"GB200": 4, "GB300": 4}
"""GPUs of a machine, where not 8."""


@dataclass(frozen=True)
class Case:
    """One measured step."""

    source: str
    group: str
    """The model, and what else is left out together."""
    model: Transformer
    gpu: Gpu
    fabric: Fabric
    gpus: int
    layout: Layout
    micro_batch: int
    grad_accum: int
    precision: str
    step_s: float
    mfu: float | None = None
    """As the source says."""
    stated: Mapping[str, float] = field(default_factory=dict)
    """Coefficients that follow from how the step was run."""


def _sizes(**numbers: int | bool) -> Transformer:
    found = transformer(**numbers).transformer  # type: ignore[arg-type]
    assert found is not None
    return found


_LLAMA_8B = {"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 14336, "vocab": 128256}
_LLAMA_70B = {"layers": 80, "hidden": 8192, "heads": 64, "kv_heads": 8, "ffn": 28672, "vocab": 128256}
_LLAMA_405B = {"layers": 126, "hidden": 16384, "heads": 128, "kv_heads": 8, "ffn": 53248, "vocab": 128256}
MODELS: dict[str, dict[str, int]] = {
    "llama-like 1B": {"layers": 16, "hidden": 2048, "heads": 32, "ffn": 8192, "vocab": 131072, "tied": True},
    "llama-like 8B": {"layers": 32, "hidden": 4096, "heads": 32, "ffn": 14336, "vocab": 131072},
    "llama-like 80B": {"layers": 80, "hidden": 8192, "heads": 64, "ffn": 28672, "vocab": 131072},
    "LLAMA3_8B": _LLAMA_8B,
    "Llama-3.1-8B": _LLAMA_8B,
    "LLAMA3_70B": _LLAMA_70B,
    "LLAMA3.1_405B": _LLAMA_405B,
    "Llama-3-70B cut to 12 layers": {**_LLAMA_70B, "layers": 12},
    "Llama-3-405B cut to 4 layers": {**_LLAMA_405B, "layers": 4},
    "Qwen3_30B_a3B": {
        "layers": 48, "hidden": 2048, "heads": 32, "kv_heads": 4, "head_dim": 128, "ffn": 6144, "vocab": 151936,
        "experts": 128, "experts_per_token": 8, "expert_ffn": 768,
    },
    "GPT OSS 120B": {
        "layers": 36, "hidden": 2880, "heads": 64, "kv_heads": 8, "head_dim": 64, "ffn": 2880, "vocab": 201088,
        "experts": 128, "experts_per_token": 4, "expert_ffn": 2880,
    },
    "InternLM-7B": {"layers": 32, "hidden": 4096, "heads": 32, "ffn": 11008, "vocab": 103168},
    "Llama-2-7b": {"layers": 32, "hidden": 4096, "heads": 32, "ffn": 11008, "vocab": 32000},
}  # fmt: skip
"""Sizes by the models' own configurations. Shapes of nanotron's models are checked by their parameter counts."""


def cases(folder: Path) -> list[Case]:
    """All of them. `folder` is that of the published layouts."""
    readers: dict[str, Callable[[dict[str, str]], Case | None]] = {
        "nanotron_ultrascale": _nanotron,
        "megatron_bridge_summary": _bridge,
        "mlperf_llm_v5": _mlperf,
        "torchtitan": _torchtitan,
        "simumax_b200": _simumax,
        "internevo": _internevo,
        "fms_fsdp": _fms,
    }
    found = []
    for name, reader in readers.items():
        with (folder / f"{name}.csv").open(newline="", encoding="utf-8") as file:
            found += [case for row in csv.DictReader(file) if row["step_s"] and (case := reader(row)) is not None]
    return found


def _nanotron(row: dict[str, str]) -> Case | None:
    shard = "zero1" if row["zero_stage"] == "1" else "none"
    return _case("nanotron", row, "H100", shard) if row["model"] in MODELS and row["status"] == "ok" else None


def _bridge(row: dict[str, str]) -> Case | None:
    precision = row["precision"].upper()
    known = precision.startswith(("BF16", "FP8", "MXFP8"))
    if row["model"] not in MODELS or not known or row["phase"] not in ("", "Pre-Training Performance"):
        return None
    shard = "zero3" if row["dp_shard"] == "fsdp" else "zero1"
    case = _case("bridge", row, row["gpu_model"].split("-")[0], shard, "bf16" if precision == "BF16" else "fp8")
    return case and _by_recipe(case, 2.0**27, precision.split()[0] in ("FP8", "FP8-CS"))


def _mlperf(row: dict[str, str]) -> Case | None:
    gpu = next((name for name in ("GB200", "GB300", "B300", "B200", "H200", "H100") if name in row["gpu_model"]), None)
    if gpu is None or row["model"] not in MODELS or row["precision"] != "fp8" or row["layout_ambiguous"] != "False":
        return None
    case = _case("mlperf", row, gpu, "zero1", "fp8")
    return case and _by_recipe(case, 768e6, gathered_in_fp8=True)


def _by_recipe(case: Case, bucket: float, gathered_in_fp8: bool) -> Case:
    """With what NVIDIA's recipes set: gradients are reduced in bf16, in buckets of so many parameters; parameters with
    one scale a tensor are gathered in fp8, those with more (MXFP8) in bf16 (Megatron-Bridge: `scripts/performance`,
    `training/mixed_precision.py`, `training/comm_overlap.py`; MLPerf 5.1: `llama31_8b/implementations/nemo`)."""
    stated = {"reduced_bytes": 2.0, "gathered_bytes": 1.0 if gathered_in_fp8 else 2.0, "piece": bucket}
    return replace(case, stated=stated)


def _torchtitan(row: dict[str, str]) -> Case | None:
    slow = "rowwise" in row["precision"]
    if slow or row["model"] not in MODELS or not row["layers"]:
        return None
    recompute = "full" if row["checkpointing"] == "full" else "selective"
    gpu = "H200" if "H200" in row["gpu_model"] else "H100"
    case = _case("torchtitan", row, gpu, "zero3", "bf16" if row["precision"] == "bf16" else "fp8", recompute)
    if case and gpu == "H100":  # HBM2e at 500 W
        case = replace(case, gpu=replace(case.gpu, tdp_w=500.0, memory_bandwidth_gb_s=2400.0))
    return replace(case, group=f"{case.group} {'compiled' if 'compile' in row['note'] else 'eager'}") if case else None


def _simumax(row: dict[str, str]) -> Case | None:
    return _case("simumax", row, "B200", "zero1")


def _internevo(row: dict[str, str]) -> Case | None:
    recompute = "full" if row["checkpointing"] == "full" else "none"
    return _case("internevo", row, "A100", "zero1", recompute=recompute)


def _fms(row: dict[str, str]) -> Case | None:
    return _case("fms", row, row["gpu_model"].split("-")[0], "hsdp:8") if row["model"] in MODELS else None


def _case(
    source: str, row: dict[str, str], gpu: str, shard: str, precision: str = "bf16", recompute: str = "none"
) -> Case | None:
    def number(name: str) -> int:
        return int(float(row.get(name) or 1))

    gpus, micro_batch = number("gpus"), number("micro_batch")
    layout = Layout(
        tensor=number("tp"), pipeline=number("pp"), context=number("cp"), expert=number("ep"),
        virtual=number("vp") if number("pp") > 1 else 1, shard=shard, recompute=recompute,
    )  # fmt: skip
    model = _sizes(**{**MODELS[row["model"]], "seq": number("seq")})
    if layout.problem(model, gpus):
        return None
    grad_accum, rest = divmod(number("global_batch"), layout.data_ranks(gpus) * micro_batch)
    if rest or not grad_accum:
        return None
    name = {"A100": "A100-80GB", "B200": "B200"}.get(gpu, gpu)
    nodes = _SMALL_MACHINES.get(gpu, 8)
    machine = machine_of(Target(gpu_model=name, network_gbps=NETWORK_GBPS[gpu], placement=(nodes,)), default_catalog())
    assert machine.gpu is not None
    return Case(
        source, row["model"], model, machine.gpu, fabric_of(machine, nodes), gpus, layout, micro_batch, grad_accum,
        precision, float(row["step_s"]), float(row["mfu"]) if row["mfu"] else None,
    )  # fmt: skip
