"""What `recommend` answers to questions whose answer was published: the step of the machine that it chooses lies in the
interval, and no machine that ran the job is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from ddlprof.planning.choose import answer
from ddlprof.planning.features import count_model
from ddlprof.planning.job import DescribedJob
from ddlprof.planning.question import PlanQuestion
from ddlprof.recommender import Settings
from ddlprof.recommender.plans.plan import Plan

DECODERS = "tests.unit.planning.decoder_networks"
SECONDS_OF_A_WEEK = 7 * 86400.0


def plans(
    model: str, sample: str, batch: int, settings: Settings, machines: Sequence[str], **counted: Any
) -> Sequence[Plan]:
    """The plans of a thousand steps on the machines, the cheapest first."""
    work = count_model(model, [sample], batch=batch, **counted).workload()
    question = PlanQuestion(
        samples=1000.0 * batch, budget_s=SECONDS_OF_A_WEEK, max_cost_usd=None, settings=settings, region=None,
        cloud="any", instance_types=machines, nodes=None, max_nodes=1, pricing=("on_demand",), prices=None,
        interruptions={}, keep_global_batch=False, batches_per_gpu=(batch,), global_batch=None, gpus=None,
    )  # fmt: skip
    return answer(DescribedJob(model, work), question).plans


def check(found: Sequence[Plan], published_s: Mapping[str, float]) -> None:
    """`published_s`: the step on each type of machine that ran the job."""
    refused = [plan.reason for plan in found if plan.instance_type in published_s and plan.reason]
    assert refused == []
    chosen = found[0]
    assert chosen.instance_type in published_s, "a machine was chosen of which no step is known"
    assert chosen.step_low_s is not None
    assert chosen.step_high_s is not None
    assert chosen.step_low_s <= published_s[chosen.instance_type] <= chosen.step_high_s


@pytest.mark.slow
def test_lora_of_llama_8b() -> None:
    """torchtune's recipe on one card, packed sequences (README.md of meta-pytorch/torchtune, commit bd2a0fc)."""
    settings = Settings(lora=8, lora_targets="all-linear", lora_precision="bf16", compiled=True)
    machines = ["1x_RTX4090_SECURE", "1A100.22V", "gpu_1x_h100_pcie"]
    found = plans(f"{DECODERS}:llama_8b", "int64:2048", 2, settings, machines, precision="bf16")
    check(found, {"1x_RTX4090_SECURE": 1.329})


@pytest.mark.slow
def test_resnet_50_in_bf16() -> None:
    """NVIDIA's DeepLearningExamples under AMP with channels last, one A100-SXM4-80GB: 2,461 images a second."""
    settings = Settings(precision="amp-bf16", channels_last=True)
    machines = ["1A100.22V", "1x_A100-80GB-SXM_SECURE"]
    found = plans(
        "scripts.jobs.gpu.models:resnet", "float32:3,224,224", 256, settings, machines, optimizer="sgd-momentum"
    )
    check(found, dict.fromkeys(machines, 256 / 2461))


def test_gpt2_on_eight_gpus() -> None:
    """llm.c, 64 sequences a GPU, ZeRO-1 (scripts/run_gpt2_124M.sh of karpathy/llm.c, commit f1e2ace)."""
    settings = Settings(compiled=True, strategy="zero", optimizer="adamw-fused")
    machines = ["8A100.176V", "8x_A100-80GB-SXM_SECURE", "p4de.24xlarge"]
    found = plans(f"{DECODERS}:gpt2_124m", "int64:1024", 64, settings, machines, precision="bf16")
    check(found, dict.fromkeys(machines, 0.3))


@pytest.mark.slow
def test_all_weights_of_qwen_14b_fit_where_they_were_trained() -> None:
    """Four A100-SXM4-80GB with parameters sharded. Its published step, by DeepSpeed, is not looked at here."""
    settings = Settings(strategy="fsdp", grad_accum=8)
    found = plans(f"{DECODERS}:qwen_14b", "int64:2048", 1, settings, ["4A100.88V", "a2-ultragpu-4g"], precision="bf16")
    assert [plan.reason for plan in found] == ["", ""]
