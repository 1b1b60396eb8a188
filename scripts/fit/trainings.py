"""Predicts published trainings as a user would ask for them, and prints how far off the predictions are.

    python -m scripts.fit.trainings --data ../shared/data/training [--source NAME ...] [--rows FILE.csv] [--sizes]
        [--timm MODELS --throughput ../shared/data/throughput]

Nothing here is fitted. Each row goes the way of `ddlprof features transformers:CONFIG.json` and `ddlprof predict` (with
`--sizes`: of `ddlprof features CONFIG.json` and `predict --layout`). It needs transformers, and timm for its models.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from statistics import fmean, median
from typing import Any

import pandas as pd

from ddlprof.base.errors import DdlprofError
from ddlprof.planning.choose import placement_on, predictions
from ddlprof.planning.features import count_model
from ddlprof.planning.job import DescribedJob
from ddlprof.planning.layouts import LayoutQuestion, predict_layouts
from ddlprof.planning.transformers import workload_by_sizes
from ddlprof.recommender import Settings, Workload
from ddlprof.recommender.compute.memory import CONTEXT_GIB
from ddlprof.recommender.layout import parse_layout
from scripts.bench.jobs import progress
from scripts.fit.trained_models import CONFIGS, gpt2_like

BENCHMARKS = Path(__file__).resolve().parents[2] / "docs" / "benchmarks.md"
_JOBS_ON_A_GPU = Path(__file__).resolve().parents[1] / "jobs" / "gpu"
_TEN_MODELS = ("resnet50", "resnet50", "gpt_small", "gpt_small", "launches", "launches", "perceptron", "perceptron",
               "vit", "vit")  # fmt: skip
"""The networks of `scripts.jobs.gpu.ten_models` in the rows of the table of docs/benchmarks.md."""
_GPUS = {
    "H100-80GB (form not stated)": "H100-SXM5-80GB",  # its attention is as much faster than an A100's as its SMs
    "A100-80GB (form not stated)": "A100-SXM4-80GB",
    "A100-SXM4-80GB (size not stated)": "A100-SXM4-80GB",
    "not stated (H100 assumed)": "H100-SXM5-80GB",
}
"""GPUs that are not stated in full, and what they are taken for."""


Row = Mapping[Hashable, Any]


@dataclass(frozen=True)
class Ask:
    """A job as a user asks for it, on GPUs of one machine, and what was published of it."""

    group: tuple[str, ...]
    """Source, method and GPU."""
    model: str
    """What `ddlprof features` takes."""
    gpu: str
    gpus: int
    batch: int
    step_s: float
    counted: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of `count_model` that a user has to give with the model."""
    settings: Settings = field(default_factory=Settings)
    memory_gib: float | None = None
    """The published memory of one GPU."""


@dataclass(frozen=True)
class Result:
    """An asked job with its prediction: seconds and GiB; None: not predicted, `problem` says why."""

    ask: Ask
    step_s: float | None = None
    low_s: float = 0.0
    high_s: float = 0.0
    memory_gib: float | None = None
    fits: bool | None = None
    problem: str = ""

    @property
    def error(self) -> float:
        """The signed error of the step, as a share of the published one."""
        assert self.step_s is not None
        return self.step_s / self.ask.step_s - 1


def published(folder: Path, sources: Sequence[str], left_out: Counter[str]) -> Iterator[Ask]:
    """The jobs of the files of trainings. Those that nobody can ask for are counted in `left_out` by their reason."""
    for path in sorted(folder.glob("*.csv")):
        if sources and path.stem not in sources:
            continue
        for row in pd.read_csv(path).to_dict("records"):
            if reason := _not_asked(row):
                left_out[f"{path.stem}: {reason}"] += 1
            else:
                yield _ask(path.stem, row)


_UNASKABLE = {
    "CPU offload": "parameters or states offloaded to the host",
    "Llama 3 8B": "the same numbers as another row",
    "OOM = did not run": "did not run",
    "PagedAdamW8bit": "update in backward with paged states",
    "SOAP": "an optimizer that is not known (SOAP)",
}
"""What the notes of a row say, and why the row is left out."""


def _not_asked(row: Row) -> str | None:
    if row["method"] == "lora+embedding":
        return "embedding trained beside adapters"
    if row["gpus"] == "1 or 8":
        return "the number of GPUs is not stated"
    notes = str(row["notes"])
    found = next((reason for text, reason in _UNASKABLE.items() if text in notes), None)
    if found is None and notes == "same; tokens/s as published, mean of an epoch, packed":
        return _UNASKABLE["PagedAdamW8bit"]
    if found is None and (not row["step_s"] > 0):
        return "no step is published, or whose tokens a second are meant"
    if found is None and row["model"] == "gpt3-125m":
        return "faster than the peak of the GPUs that are named"
    if found is None and row["model"] == "vit5-small" and int(row["gpus"]) > 1:
        return "ranks wait for their input, whose cost is not published"
    return found


def _ask(source: str, row: Row) -> Ask:
    notes, gpus, method = str(row["notes"]), int(row["gpus"]), str(row["method"])
    gpu = str(_GPUS.get(row["gpu_model"], row["gpu_model"]))
    if source == "torchtune" and gpu == "RTX-A6000":
        gpu = "RTX-6000-Ada"  # its steps are beyond the peak of an A6000
    again = str(row["checkpointing"]).startswith("full") and "no checkpointing?" not in notes
    compiled = str(row["compiled"]) in ("True", "C/CUDA") or "TE TransformerLayer" in notes
    precision = _precision(source, row)
    fp8, optimizer = precision == "fp8", "none" if source == "nvsubquadratic" else _optimizer(source)
    counted: dict[str, Any] = {
        "precision": "bf16" if fp8 else precision, "checkpointing": again, "compiled": compiled,
        "optimizer": optimizer, "seq_len": int(row["seq"]), "batch": int(row["batch"]),
    }  # fmt: skip
    if row["model"] == "vit5-small":
        model = "vit5_plain" if "before optimisation" in notes or notes == "same, torch.compile" else "vit5"
        name = f"scripts.fit.trained_models:{model}"
        image = "bfloat16:3,224,224" if precision == "bf16" else "float32:3,224,224"
        counted = {**counted, "seq_len": None, "inputs": (image,)}
    else:
        name, loss = _config_file(str(row["model"]), row), _own_loss(source, row)
        if loss:
            name = f"scripts.fit.trained_models:{loss}_{str(row['model']).replace('.', '_')}"
        if loss or again:  # without a mask, transformers takes sequences for packed and makes one for its attention
            tokens = f"int64:{row['seq']}"
            mask = (f"attention_mask={tokens}",) if source != "qwen" else ()  # its code is causal for one sequence
            if source == "ljm565":  # whose loader pads samples, of which transformers makes such a mask
                mask = (f"attention_mask=1,{row['seq']},{row['seq']}",)
            given = (f"input_ids={tokens}", *mask, f"labels={tokens}")
            counted = {**counted, "seq_len": None, "inputs": given}
    rank = 64 if source == "qwen" else 8
    adapted = method in ("lora", "qlora")
    # Adapters are in the type of the weights in torchtune and DeepSpeed, and were in fp32 in PEFT before 0.7.
    by_trainer = "amp-bf16" if gpus == 1 else "bf16"
    held = {"qwen": "fp16" if method == "qlora" else by_trainer, "torchtune": "bf16"}.get(source)
    accumulated = 1 if source == "ljm565" else int(row["grad_accum"])  # its step is one forward and backward
    settings = Settings(
        optimizer="lamb-fused" if "fused LAMB" in notes else None,
        precision="fp8" if fp8 else None, grad_accum=accumulated, strategy=_strategy(source, row),
        lora=rank if method == "lora" else None, qlora=rank if method == "qlora" else None,
        lora_targets=_targets(source) if adapted else None, lora_precision=held if adapted else None,
        lora_dropout=True if adapted and source in ("qwen", "ljm565") else None,
        qlora_format="gptq" if "GPTQ" in str(row["precision"]) else None,
    )  # fmt: skip
    memory = float(row["memory_gib"]) / (gpus if source == "qwen" else 1)
    if source in ("ljm565", "qwen"):  # in GB: 1e9 bytes of its allocator, and up to 81.0 a GPU of 80 GiB
        memory *= 1e9 / 2**30
    if source in ("ljm565", "torchtune"):
        memory += CONTEXT_GIB  # which no figure of the allocator has
    # Not to be asked for, and of memory alone; what tuned rows have, the later ones have too.
    apart = "optimizer in backward" in notes or "after offloading" in notes or notes.startswith("QLoRA; each on top")
    return Ask((source, method, gpu, f"{gpus} GPUs" if gpus > 1 else "1 GPU"), name, gpu, gpus, int(row["batch"]),
               float(row["step_s"]), counted, settings, None if apart or pd.isna(memory) else memory)  # fmt: skip


def _own_loss(source: str, row: Row) -> str | None:
    """How the training's own code computes the loss (`trained_models`); None: as transformers does it."""
    if source == "ljm565":
        return "outside"
    if source == "qwen":  # under autocast where it is not DeepSpeed's
        return "outside" if _strategy(source, row) else "fp32"
    if source == "torchtune":  # its tuned rows have each what those before have
        return None if row["notes"].startswith(("packed;", "+compile;")) else "parts"
    return None


def _targets(source: str) -> str:
    return "q_proj,v_proj,o_proj,gate_proj,up_proj,down_proj" if source == "torchtune" else "all-linear"


def _precision(source: str, row: Row) -> str:
    named = str(row["precision"]).split()[0]
    return "fp32" if source == "ljm565" and row["method"] == "qlora" else named


def _optimizer(source: str) -> str:
    if source == "modded_nanogpt":
        return "muon"
    return "adamw-fused" if source in ("llmc", "transformer_engine", "nanogpt", "torchtune") else "adamw"


def _strategy(source: str, row: Row) -> str | None:
    if source == "qwen" and row["method"] == "qlora":
        return "deepspeed-zero2"
    if source == "qwen" and (row["method"] == "full" or int(row["gpus"]) > 1):
        return "deepspeed-zero3"
    if int(row["gpus"]) == 1:
        return None
    if source == "modded_nanogpt":
        return "ddp" if "not distributed" in row["notes"] else "zero"  # each rank updates some of the matrices
    return {"llmc": "zero", "ljm565": "fsdp"}.get(source, "ddp")


@lru_cache(maxsize=1)
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="trainings-")


def _config_file(model: str, row: Row) -> str:
    """The config.json of the row's model."""
    config = CONFIGS.get(model)
    vocab = re.search(r"vocab(?:ulary of)? (\d+)", str(row["notes"]))
    if config is None:
        config = gpt2_like(int(row["layers"]), int(row["hidden"]), int(row["heads"]), 50304)
    if vocab:
        config = {**config, "vocab_size": int(vocab.group(1))}
    name = f"{model}-{config['vocab_size']}-{row['layers']}-{row['heads']}.json"
    path = Path(_folder().name, name)
    path.write_text(json.dumps(config), encoding="utf-8")
    return f"transformers:{path}"


def on_h200() -> Iterator[Ask]:
    """The steps on one H200 that docs/benchmarks.md has."""
    if str(_JOBS_ON_A_GPU) not in sys.path:
        sys.path.insert(0, str(_JOBS_ON_A_GPU))
    from ten_models import MODELS

    lines = BENCHMARKS.read_text(encoding="utf-8").partition("| model, samples | fp32 |")[2].splitlines()[2:]
    for name, line in zip(_TEN_MODELS, lines, strict=False):
        label, *cells = (cell.strip() for cell in line.strip().strip("|").split("|"))
        batch = int(label.rpartition(", ")[2].replace(",", ""))
        for precision, cell in zip(("fp32", "tf32", "amp-bf16"), cells, strict=True):
            step_ms, host_ms = (float(each) for each in re.findall(r"[\d.]+", cell)[:2])
            waits = "host waited for" if host_ms > 0.97 * step_ms else "device computes"
            counted = {
                "precision": precision.replace("tf32", "fp32"), "batch": batch, "inputs": (MODELS[name].sample,),
            }  # fmt: skip
            settings = Settings(precision="tf32") if precision == "tf32" else Settings()
            yield Ask(("h200", waits, "H200"), f"ten_models:{name}", "H200", 1, batch, step_ms / 1e3, counted, settings)


def of_timm(folder: Path, models: int) -> Iterator[Ask]:
    """Pairs of steps of timm's networks with channels first and last, of `models` networks spread over all.

    They are of 2022, by torch 1.12: timm had no fused attention then, and has none if this is set before its import.
    """
    os.environ["TIMM_FUSED_ATTN"] = "0"
    table = pd.read_csv(folder / "train.csv", low_memory=False)
    table = table[table.source.eq("timm") & table.total_gpus.eq(1) & table.system.str.contains("nchw|nhwc")]
    names = sorted(table.model.unique())
    for name in names[:: max(len(names) // models, 1)]:
        found = re.fullmatch(r"timm_(.+)_(\d+)px", name)
        assert found
        for row in table[table.model.eq(name)].to_dict("records"):
            last = "nhwc" in row["system"]
            counted = {
                "precision": "amp-fp16", "batch": 8, "optimizer": "sgd-momentum",
                "inputs": (f"float32:3,{found.group(2)},{found.group(2)}",),
            }  # fmt: skip
            group = ("timm", "NHWC" if last else "NCHW", row["gpu_model"])
            yield Ask(group, f"timm:{found.group(1)}", row["gpu_model"], 1, int(row["batch_per_gpu"]),
                      float(row["step_time_s"]), counted, Settings(channels_last=last))  # fmt: skip


@lru_cache(maxsize=8)
def _counted(model: str, counted: str) -> Workload:
    return count_model(model, **json.loads(counted)).workload()


def predicted(ask: Ask) -> Result:
    """The step and the memory as `ddlprof features` and `predict` say them."""
    try:
        work = _counted(ask.model, json.dumps(dict(ask.counted)))
        question = (("gpu_model", ask.gpu), ask.settings)
        found = predictions(DescribedJob(ask.model, work), ask.batch, placement_on((ask.gpus,), None), [question])[0]
    except DdlprofError as error:
        return Result(ask, problem=str(error))
    estimate, memory = found.estimate, found.memory
    assert estimate is not None
    return Result(ask, estimate.step_s, estimate.low_s, estimate.high_s, *(
        (memory.needed_gib, memory.fits) if memory else (None, None)
    ))  # fmt: skip


def predicted_by_sizes(ask: Ask) -> Result:
    """The same as `ddlprof features CONFIG.json` and `predict --layout` say them."""
    if not ask.model.endswith(".json") or ask.settings.lora or ask.settings.qlora:
        return Result(ask, problem="has no layout")
    shard = {"zero": "zero1", "fsdp": "zero3", **{f"deepspeed-zero{n}": f"zero{n}" for n in (2, 3)}}.get(
        ask.settings.strategy or "", ""
    )
    layout = f"dp{ask.gpus},{shard},{'full' if ask.counted['checkpointing'] else ''}"
    question = LayoutQuestion(
        parse_layout(layout), micro_batch=ask.batch, grad_accum=ask.settings.grad_accum,
        precision=ask.settings.precision or ask.counted["precision"], optimizer=ask.counted["optimizer"],
    )  # fmt: skip
    try:
        work = workload_by_sizes(ask.model.removeprefix("transformers:"), {}, ask.counted["seq_len"])
        found = predict_layouts(DescribedJob(ask.model, work), [("gpu_model", ask.gpu)], question)[0].estimate
    except DdlprofError as error:
        return Result(ask, problem=str(error))
    assert found is not None
    return Result(ask, found.step_s, found.low_s, found.high_s, found.memory_gib, found.fits_memory)


def table(results: Sequence[Result]) -> pd.DataFrame:
    """A row for each source, method and GPU: the errors of steps and memory."""
    groups: dict[tuple[str, ...], list[Result]] = {}
    for result in results:
        groups.setdefault(result.ask.group, []).append(result)
    rows = [{"source": ", ".join(group), **_errors(each)} for group, each in groups.items()]
    found: pd.DataFrame = pd.DataFrame(rows)
    return found


def _errors(results: Sequence[Result]) -> dict[str, Any]:
    known = [result for result in results if result.step_s is not None]
    errors = [result.error for result in known]
    memory = [r.memory_gib / r.ask.memory_gib - 1 for r in known if r.memory_gib and r.ask.memory_gib]
    return {
        "steps": len(known),
        "mean": f"{fmean(map(abs, errors)):.1%}" if errors else "",
        "median": f"{median(map(abs, errors)):.1%}" if errors else "",
        "bias": f"{fmean(errors):+.1%}" if errors else "",
        "in 80 % interval": sum(r.low_s <= r.ask.step_s <= r.high_s for r in known),
        "memory, mean": f"{fmean(map(abs, memory)):.1%} of {len(memory)}" if memory else "",
        "memory, bias": f"{fmean(memory):+.1%}" if memory else "",
        "refused": sum(r.fits is False for r in known),
        "not predicted": len(results) - len(known),
    }


def as_row(result: Result) -> dict[str, Any]:
    """One prediction, for a file."""
    ask = result.ask
    return {
        "group": ", ".join(ask.group), "model": Path(ask.model).name, "tokens": ask.counted.get("seq_len"),
        "batch": ask.batch, "precision": ask.settings.precision or ask.counted["precision"],
        "checkpointing": ask.counted.get("checkpointing", False), "compiled": ask.counted.get("compiled", False),
        "published_s": ask.step_s, "step_s": result.step_s, "low_s": result.low_s, "high_s": result.high_s,
        "published_gib": ask.memory_gib, "memory_gib": result.memory_gib, "fits": result.fits,
        "problem": result.problem,
    }  # fmt: skip


def _markdown(frame: pd.DataFrame) -> str:
    lines = [list(frame.columns), ["---"] * len(frame.columns), *frame.astype(str).to_numpy().tolist()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the published trainings")
    parser.add_argument("--source", nargs="*", default=(), help="files without their ending; h200: docs/benchmarks.md")
    parser.add_argument("--rows", type=Path, help="a CSV file for every prediction")
    parser.add_argument("--out", type=Path, help="a file for the table")
    parser.add_argument("--sizes", action="store_true", help="by the sizes of the models and a layout")
    parser.add_argument("--timm", type=int, default=0, help="so many of timm's networks")
    parser.add_argument("--throughput", type=Path, help="folder of the published throughputs, for --timm")
    asked = parser.parse_args(arguments)
    left_out: Counter[str] = Counter()
    asks = list(published(asked.data, asked.source, left_out))
    asks += on_h200() if not asked.source or "h200" in asked.source else []
    asks += of_timm(asked.throughput, asked.timm) if asked.timm else []
    predict = predicted_by_sizes if asked.sizes else predicted
    results = []
    for number, ask in enumerate(asks, 1):
        progress(f"{number} of {len(asks)}: {', '.join(ask.group)}, {Path(ask.model).name}")
        results.append(predict(ask))
    text = _markdown(table(results))
    reasons = [f"{count} left out, {reason}" for reason, count in left_out.items()]
    reasons += [f"not predicted: {problem}" for problem in dict.fromkeys(r.problem for r in results if r.problem)]
    print("\n".join([text, "", *reasons]))
    if asked.out:
        asked.out.write_text(text + "\n", encoding="utf-8")
    if asked.rows:
        pd.DataFrame(map(as_row, results)).to_csv(asked.rows, index=False)


if __name__ == "__main__":
    main()
