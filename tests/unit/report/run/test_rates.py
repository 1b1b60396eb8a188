"""Rates worked out by hand: a step of 95.2 ms on two ranks, with facts of a text model put into its manifest."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ddlprof.analysis.amounts import Amounts
from ddlprof.analysis.run import analyse, headline_attempt
from ddlprof.report.run.rates import Rates, rates_of, rates_text
from ddlprof.store import load_run
from tests.golden.runs import HERE

A100, PEAK = "NVIDIA A100-SXM4-80GB", 312.0


def rates(
    device: str = A100, model: dict[str, Any] | None = None, samples: bool = True, amounts: Amounts | None = None,
    **training: Any,
) -> Rates:  # fmt: skip
    run = load_run(HERE / "two-ranks")
    headline = headline_attempt(analyse(run))
    assert run.manifest is not None
    assert headline is not None
    for rank in headline.ranks:
        rank.data.header = replace(rank.data.header, device=device)
        if not samples:
            rank.data.steps["samples"][:] = -1
    facts: dict[str, Any] = {"precision": "amp-bf16", "tokens_per_sample": 1000.0, **training}
    run.manifest.training = replace(run.manifest.training, **facts)
    flops = {"forward_flops_per_sample": 1e11, "backward_flops_per_sample": 2e11}
    run.manifest.model = replace(run.manifest.model, **(flops | (model or {})))
    headline.__dict__["amounts"] = amounts  # a property that is computed once
    return rates_of(run.manifest, headline)


STEP_S = 0.0952
SAMPLES = 2 * 32 / STEP_S


def test_rates_of_two_data_parallel_gpus() -> None:
    found = rates()
    assert found.samples_per_s == pytest.approx(SAMPLES, rel=1e-3)
    assert found.samples_per_s_per_gpu == pytest.approx(SAMPLES / 2, rel=1e-3)
    assert found.tokens_per_s_per_gpu == pytest.approx(1000 * SAMPLES / 2, rel=1e-3)
    assert found.tflops_per_gpu == pytest.approx(3e11 * SAMPLES / 2 / 1e12, rel=1e-3)
    assert found.peak_tflops == PEAK
    assert found.mfu == pytest.approx(3e11 * SAMPLES / 2 / 1e12 / PEAK, rel=1e-3)
    assert found.hfu is None
    text = rates_text(found, on_cpu=False)
    assert text == "672,230 tokens/s (336,115 a GPU), 101 TFLOP/s a GPU, MFU 32 % of 312 TFLOP/s"


def test_tokens_are_those_of_all_ranks() -> None:
    """Rank 0's texts are short, and its operations were counted."""
    found = rates(amounts=Amounts({0: 32, 1: 32}, {0: 32 * 200.0, 1: 32 * 800.0}, True, 200.0, 0.3))
    assert found.tokens_per_s == pytest.approx(32 * 1000 / STEP_S, rel=1e-3)
    assert found.padding_share == 0.3
    assert found.tflops_per_gpu == pytest.approx(2.5 * 3e11 * SAMPLES / 2 / 1e12, rel=1e-3)
    frames = rates(amounts=Amounts({0: 32, 1: 32}, {0: 200.0, 1: 800.0}, False, 200.0), tokens_per_sample=None)
    assert frames.tokens_per_s is None
    assert frames.tflops_per_gpu == pytest.approx(3e11 * SAMPLES / 2 / 1e12, rel=1e-3)


def test_what_is_computed_again_is_no_progress() -> None:
    found = rates(model={"backward_flops_per_sample": 3e11, "recomputed_flops_per_sample": 1e11})
    assert found.mfu == rates().mfu
    assert found.mfu is not None
    assert found.hfu == pytest.approx(found.mfu * 4 / 3)
    assert "MFU 32 % (HFU 43 %)" in rates_text(found, on_cpu=False)


def test_tensor_parallel_ranks_see_the_same_samples() -> None:
    found = rates(strategy="tp", data_parallel_ranks=1)
    assert found.samples_per_s == pytest.approx(SAMPLES / 2, rel=1e-3)
    assert found.tflops_per_gpu == pytest.approx(3e11 * SAMPLES / 4 / 1e12, rel=1e-3)


def test_of_a_pipeline_only_one_stage_was_counted() -> None:
    found = rates(strategy="pp", global_batch=64)
    assert (found.tflops_per_gpu, found.mfu) == (None, None)
    assert found.samples_per_s == pytest.approx(SAMPLES, rel=1e-3)
    assert rates(strategy="pp", global_batch=None).samples_per_s is None


def test_on_processors_there_is_no_peak() -> None:
    found = rates("cpu", padding_share=0.25)
    assert (found.peak_tflops, found.mfu, found.hfu) == (None, None, None)
    assert rates_text(found, on_cpu=True) == "672,230 tokens/s (336,115 a rank), padding 25 %, 101 TFLOP/s a rank"
    small = rates("cpu", model={"forward_flops_per_sample": 1e6, "backward_flops_per_sample": 2e6})
    assert "FLOP" not in rates_text(small, on_cpu=True)


@pytest.mark.parametrize(("device", "precision"), [("Some Accelerator", "bf16"), (A100, None), (A100, "fp8")])
def test_an_unknown_peak_is_none(device: str, precision: str | None) -> None:
    assert rates(device, precision=precision).mfu is None


def test_several_gpus_in_one_rank_are_not_divided_by() -> None:
    found = rates(strategy="dp")
    assert found.samples_per_s is not None
    assert (found.samples_per_s_per_gpu, found.mfu) == (None, None)


def test_images_have_no_tokens() -> None:
    assert rates_text(rates(tokens_per_sample=None), on_cpu=False).startswith("672 samples/s (336 a GPU), 101")


def test_nothing_is_known_of_nothing() -> None:
    assert rates_of(None, None) == Rates()
    assert rates_text(Rates(), on_cpu=True) == ""
