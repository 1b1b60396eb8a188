"""Questions about a job whose operators are known, and what a probe of the GPU makes of the answer."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddlprof.instance_catalog import Reached
from ddlprof.instance_catalog.overlay import add_reached
from ddlprof.model.operators import Operator, StepMemory, StepOperators
from ddlprof.recommender import Measurement, Workload
from ddlprof.recommender.target import default_catalog
from tests.unit.cli.commands import ddlprof, write_workload

LAYERS, TOKENS, WIDTH = 24, 4096, 2048
ELEMENTS = 4.0 * LAYERS * WIDTH * WIDTH
GIB = 2**30


def product(phase: str, count: float) -> Operator:
    flops, moved = 2.0 * TOKENS * WIDTH * WIDTH, 4.0 * (2 * TOKENS * WIDTH + WIDTH * WIDTH)
    shape = (1, TOKENS, WIDTH, WIDTH)
    return Operator("product", phase, "mm", "fp32", shape, flops, moved, 1, count, 1, 4.0 * WIDTH * WIDTH)


def elementwise(phase: str) -> Operator:
    moved = 8.0 * TOKENS * WIDTH
    return Operator("elementwise", phase, "gelu", "fp32", (TOKENS * WIDTH,), 0.0, moved, 1, 4.0 * LAYERS, 0)


WEIGHT_GRADIENTS = replace(product("backward", 4.0 * LAYERS), shape=(1, WIDTH, WIDTH, TOKENS), grows=3)
MOVED = 80 * ELEMENTS
UPDATE = Operator(
    "optimizer", "optimizer", "_foreach_adamw_", "fp32", (int(ELEMENTS), 96), 0.0, MOVED, 40, 1, None, MOVED
)  # fmt: skip
STEP = StepOperators(
    batch=8,
    precision="fp32",
    operators=(
        product("forward", 4.0 * LAYERS), elementwise("forward"),
        product("backward", 4.0 * LAYERS), WEIGHT_GRADIENTS, elementwise("backward"), UPDATE,
    ),
    optimizer="adamw",
    memory=StepMemory(
        parameter_bytes=4 * ELEMENTS, trained_bytes=4 * ELEMENTS, saved_bytes=6.0 * GIB, temporary_bytes=0.1 * GIB,
        layer_bytes=0.3 * GIB, kept_bytes=0.2 * GIB, input_bytes=1e6,
    ),
)  # fmt: skip
JOB = Workload(
    "net", layers=4 * LAYERS, parameter_tensors=96, gradient_bytes=4 * ELEMENTS, step=STEP,
    flops_per_sample=3 * 2 * ELEMENTS * TOKENS / 8,
)  # fmt: skip


@pytest.fixture(autouse=True)
def catalog(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The directory of the user's own catalogue; the job is net.json."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DDLPROF_CATALOG", str(tmp_path / "own"))
    write_workload(JOB, tmp_path / "net.json")
    return tmp_path / "own"


def predicted(monkeypatch: pytest.MonkeyPatch, *options: str) -> dict[str, Any]:
    default_catalog.cache_clear()
    asked = ["predict", "net.json", "--instance", "p4d.24xlarge", "--batch", "8", "-o", "-", "-o", "p.json", *options]
    assert ddlprof(monkeypatch, *asked) == 0
    default_catalog.cache_clear()
    found: dict[str, Any] = json.loads(Path("p.json").read_text(encoding="utf-8"))
    return found


def test_every_setting_changes_what_it_is_about(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = predicted(monkeypatch)
    before = plain["estimate"]["phases"]
    half = predicted(monkeypatch, "--precision", "amp-bf16")
    assert half["as_measured"] == plain["estimate"]
    assert half["estimate"]["step_s"] < 0.7 * plain["estimate"]["step_s"]
    again = predicted(monkeypatch, "--checkpointing")
    assert again["estimate"]["phases"]["backward_s"] > 1.2 * before["backward_s"]
    assert again["memory_gib_needed"] < plain["memory_gib_needed"] - 1
    without = predicted(monkeypatch, "--optimizer", "none")["estimate"]["phases"]
    assert without["optimizer_s"] < 0.1 * before["optimizer_s"]
    fused = predicted(monkeypatch, "--compile")["estimate"]
    assert fused["step_s"] < plain["estimate"]["step_s"]
    twice = predicted(monkeypatch, "--grad-accum", "2")["estimate"]
    assert 1.7 < twice["step_s"] / plain["estimate"]["step_s"] < 2.05
    for answer in (half, again):
        assert "not taken into account" not in " ".join(answer["estimate"]["basis"])


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["--checkpointing"], True), (["--checkpointing", "full"], True), (["--checkpointing=full"], True),
        (["--checkpointing", "--lora", "8"], True), (["--checkpointing", "selective"], "selective"),
        (["--no-checkpointing"], False), (["--checkpointing", "none"], False), ([], None),
    ],
)  # fmt: skip
def test_checkpointing_takes_a_value_or_none(
    monkeypatch: pytest.MonkeyPatch, words: list[str], meant: bool | str | None
) -> None:
    assert predicted(monkeypatch, *words)["target"]["checkpointing"] == meant


def test_an_unknown_way_of_checkpointing_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["predict", "net.json", "--instance", "p4d.24xlarge", "--checkpointing=most"]
    assert ddlprof(monkeypatch, *words) == 2
    assert "one of: none, full, selective" in capsys.readouterr().err


def test_adapters_take_less_of_everything_and_four_bits_cost_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = predicted(monkeypatch, "--placement", "8")
    capsys.readouterr()
    lora = predicted(monkeypatch, "--placement", "8", "--lora", "8")
    assert "LoRA of rank 8" in " ".join(capsys.readouterr().out.split())
    qlora = predicted(monkeypatch, "--placement", "8", "--qlora", "8")
    before, after = plain["estimate"], lora["estimate"]
    assert after["phases"]["optimizer_s"] < 0.2 * before["phases"]["optimizer_s"]  # the host's part stays
    assert after["phases"]["backward_s"] < 0.7 * before["phases"]["backward_s"]
    assert after["interconnect_s"] < before["interconnect_s"]
    assert lora["memory_gib_needed"] < plain["memory_gib_needed"] - 3 * 4 * 0.9 * ELEMENTS / GIB
    assert qlora["memory_gib_needed"] < lora["memory_gib_needed"] - 3.4 * 0.9 * ELEMENTS / GIB
    assert qlora["estimate"]["compute_s"] > after["compute_s"]
    assert predicted(monkeypatch, "--checkpointing", "selective")["memory_gib_needed"] < plain["memory_gib_needed"]


def test_predictions_rest_on_a_probe_of_the_gpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], catalog: Path
) -> None:
    before = predicted(monkeypatch)["estimate"]
    slow = Reached("A100-SXM4-40GB", fp32_tflops=8.0, memory_gb_s=1300.0, launch_us=10.0, measured_at="2026-11-22")
    add_reached(catalog, [slow])
    after = predicted(monkeypatch)["estimate"]
    assert after["step_s"] > 1.5 * before["step_s"]
    assert after["high_s"] / after["step_s"] < before["high_s"] / before["step_s"]  # below, one ends at the peak
    assert "measured" in " ".join(after["basis"])
    elsewhere = ["predict", "net.json", "--instance", "g5.xlarge", "--batch", "8", "-o", "-", "-o", "g5.json"]
    assert ddlprof(monkeypatch, *elsewhere) == 0
    assert "measured on it" not in capsys.readouterr().out.partition("g5.xlarge")[2]


def test_another_job_tells_of_its_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    before = predicted(monkeypatch)["estimate"]
    slow = Measurement("p4d.24xlarge", placement=(1,), batch_per_gpu=8, step_s=3 * before["step_s"], exposed_comm_s=0.0)
    write_workload(replace(JOB, name="other", measurements=[slow]), Path("other.json"))
    after = predicted(monkeypatch, "--other-job", "other.json")["estimate"]
    assert after["step_s"] > 1.05 * before["step_s"]  # of a GPU of which many published steps tell, too
    assert any("1 other job" in line for line in after["basis"])


def test_the_batch_is_that_of_the_operators_where_none_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    given = predicted(monkeypatch)["estimate"]
    assert ddlprof(monkeypatch, "predict", "net.json", "--instance", "p4d.24xlarge", "-o", "-", "-o", "p.json") == 0
    assert json.loads(Path("p.json").read_text(encoding="utf-8"))["estimate"] == given
