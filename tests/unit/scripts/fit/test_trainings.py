"""What is asked of published trainings, and how the errors of their predictions are counted; without any prediction."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pandas as pd
import pytest

from scripts.fit.trainings import Ask, Result, on_h200, published, table

ROW = {
    "model": "qwen1-1.8b", "layers": 24, "hidden": 2048, "heads": 16, "seq": 256, "gpu_model": "A100-SXM4-80GB",
    "gpus": 4, "method": "lora", "precision": "bf16", "batch": 1, "grad_accum": 8, "checkpointing": "full",
    "compiled": False, "step_s": 1.5, "memory_gib": 40.0, "notes": "",
}  # fmt: skip


def asks(folder: Path, source: str, *rows: dict[str, object]) -> tuple[list[Ask], Counter[str]]:
    pd.DataFrame([{**ROW, **row} for row in rows]).to_csv(folder / f"{source}.csv", index=False)
    left_out: Counter[str] = Counter()
    return list(published(folder, (), left_out)), left_out


def test_a_published_row_is_asked_with_its_settings(tmp_path: Path) -> None:
    [ask], left_out = asks(tmp_path, "qwen", {})
    assert not left_out
    assert ask.model == "scripts.fit.trained_models:outside_qwen1-1_8b"  # without autocast under DeepSpeed
    assert (ask.gpus, ask.batch, ask.step_s) == (4, 1, 1.5)
    assert ask.memory_gib == pytest.approx(10e9 / 2**30)  # its memory is that of all GPUs, in GB
    assert (ask.settings.lora, ask.settings.qlora, ask.settings.grad_accum, ask.settings.strategy) == (
        64,
        None,
        8,
        "deepspeed-zero3",
    )
    assert ask.counted["checkpointing"] is True
    assert (ask.settings.lora_targets, ask.settings.lora_precision) == ("all-linear", "bf16")
    [packed], _ = asks(tmp_path, "qwen", {"method": "qlora", "precision": "fp16 int4 GPTQ"})
    assert (packed.settings.qlora_format, packed.settings.lora_precision) == ("gptq", "fp16")
    assert packed.settings.strategy == "deepspeed-zero2"


def test_a_loss_of_the_trainings_own_code_is_counted_as_it_is(tmp_path: Path) -> None:
    [packed], _ = asks(tmp_path, "qwen", {"method": "qlora", "precision": "fp16 int4 GPTQ"})
    assert packed.model == "scripts.fit.trained_models:outside_qwen1-1_8b"
    assert packed.counted["inputs"] == ("input_ids=int64:256", "labels=int64:256")
    [alone], _ = asks(tmp_path, "qwen", {"gpus": 1})
    assert alone.model == "scripts.fit.trained_models:fp32_qwen1-1_8b"
    tuned = ["packed; each", "+compile; each", "+chunked CE; each", "LoRA (after offloading); each"]
    rows: list[dict[str, object]] = [{"method": "full", "notes": each} for each in tuned]
    found, _ = asks(tmp_path, "torchtune", *rows)
    own = [ask.model.startswith("scripts.fit.trained_models:parts_") for ask in found if ask.group[0] == "torchtune"]
    assert own == [False, False, True, True]
    assert [ask.memory_gib is None for ask in found if ask.group[0] == "torchtune"] == [False, False, False, True]


def test_a_padded_batch_is_asked_for_with_the_mask_that_transformers_makes_of_it(tmp_path: Path) -> None:
    [ask], _ = asks(tmp_path, "ljm565", {"gpus": 1, "method": "qlora"})
    assert ask.model == "scripts.fit.trained_models:outside_qwen1-1_8b"
    assert ask.counted["inputs"] == ("input_ids=int64:256", "attention_mask=1,256,256", "labels=int64:256")


def test_figures_of_the_allocator_are_held_against_the_need_with_the_context(tmp_path: Path) -> None:
    [ask], _ = asks(tmp_path, "ljm565", {"gpus": 1})
    assert ask.memory_gib == pytest.approx(40e9 / 2**30 + 0.8)


def test_rows_that_nobody_can_ask_for_are_counted_by_their_reason(tmp_path: Path) -> None:
    found, left_out = asks(
        tmp_path, "x", {"method": "lora+embedding"}, {"step_s": None}, {"notes": "FSDP + CPU offload"}
    )
    assert found == []
    assert sorted(left_out.values()) == [1, 1, 1]
    assert len(left_out) == 3


def test_steps_on_the_h200_are_those_of_the_documentation() -> None:
    found = list(on_h200())
    assert len(found) == 30
    first = found[0]
    assert (first.model, first.batch) == ("ten_models:resnet50", 8)
    assert first.step_s == pytest.approx(0.0205)
    assert [ask.settings.precision for ask in found[:3]] == [None, "tf32", None]
    assert sum("host" in ask.group[1] for ask in found) == 12


def test_errors_are_those_of_the_published_steps(tmp_path: Path) -> None:
    [ask], _ = asks(tmp_path, "qwen", {"gpus": 1})
    results = [
        Result(ask, 3.0, 1.0, 4.0, 30e9 / 2**30, True),
        Result(ask, 1.2, 1.1, 1.4, 50e9 / 2**30, False),
        Result(ask, problem="none"),
    ]
    [row] = table(results).to_dict("records")
    assert (row["steps"], row["not predicted"], row["in 80 % interval"], row["refused"]) == (2, 1, 1, 1)
    assert (row["mean"], row["median"], row["bias"]) == ("60.0%", "60.0%", "+40.0%")
    assert (row["memory, mean"], row["memory, bias"]) == ("25.0% of 2", "+0.0%")
