"""Memory of layouts: beside peaks that Megatron-LM's own tests and SimuMax published, and by its parts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ddlprof.recommender import Layout
from ddlprof.recommender.architecture import Transformer
from ddlprof.recommender.layouts.coefficients import shipped_layouts
from ddlprof.recommender.layouts.memory import LayoutMemory, layer_bytes, layout_memory
from tests.unit.recommender.layouts.made_up import experts, model

MEGATRON = shipped_layouts().of("megatron")
GPT = {
    "layers": 12, "hidden": 512, "heads": 8, "kv_heads": 8, "ffn": 2048, "seq": 1024, "vocab": 50304, "gated": False,
    "tied": True,
}  # fmt: skip
LLAMA_70B_CUT = {"layers": 12, "hidden": 8192, "heads": 64, "ffn": 28672}


def memory(
    sizes: Transformer, layout: Layout, gpus: int = 8, sequences: int = 4, count: int = 8, software: str = "megatron"
) -> LayoutMemory:
    stages = [sizes.layers // layout.pipeline] * layout.pipeline
    fitted = shipped_layouts().of(software)
    return layout_memory(sizes, layout, gpus, sequences, count, stages, fitted)


@pytest.mark.parametrize(
    ("layout", "change", "gb"),
    [
        (Layout(shard="zero1"), {}, 2.712),
        (Layout(shard="zero1"), {"flash": False}, 4.673),
        (Layout(recompute="full"), {}, 2.536),
        (Layout(pipeline=2), {}, 2.596),
        (Layout(pipeline=4, virtual=3), {}, 2.652),
        (Layout(pipeline=4, virtual=3, shard="zero1"), {}, 2.441),
        (Layout(tensor=2, pipeline=2, sequence_parallel=False), {"vocab": 50432}, 1.410),
        (Layout(tensor=4, sequence_parallel=False), {"vocab": 50688}, 1.161),
        (Layout(tensor=2, shard="zero3", sequence_parallel=False), {"vocab": 50432}, 1.463),
    ],
)
def test_peaks_of_megatron_lms_own_tests(layout: Layout, change: dict[str, Any], gb: float) -> None:
    """Megatron-LM's continuous integration, A100 (2026): bytes of torch's allocator, without the context."""
    found = memory(model(**{**GPT, **change}), layout)
    assert (found.bytes - found.context) / 1e9 == pytest.approx(gb, rel=0.06)


@pytest.mark.parametrize(("tensor", "pipeline", "gb"), [(1, 2, 71.458), (2, 1, 65.155), (4, 1, 41.951), (8, 1, 30.376)])
def test_peaks_that_simumax_measured(tensor: int, pipeline: int, gb: float) -> None:
    """Llama-3 70B cut to 12 layers on 8 B200 (SimuMax, 2026)."""
    layout = Layout(tensor=tensor, pipeline=pipeline, shard="zero1")
    found = memory(model(**LLAMA_70B_CUT), layout, sequences=1, count=4)
    assert (found.bytes - found.context) / 1e9 == pytest.approx(gb, rel=0.05)


def test_recomputation_keeps_less() -> None:
    kept = [layer_bytes(model(), Layout(recompute=how), False, MEGATRON) for how in ("none", "selective", "full")]
    assert kept == sorted(kept, reverse=True)
    assert kept[-1] == 2 * 4096


def test_experts_and_eager_operators_keep_more() -> None:
    assert memory(experts(), Layout(expert=8), 8).weights < memory(experts(), Layout(), 8).weights / 3
    eager = memory(model(), Layout(), software="nanotron")
    assert eager.activations > 1.3 * memory(model(), Layout()).activations
    assert eager.gradients == pytest.approx(1.5 * memory(model(), Layout()).gradients)  # those in 16 bit stay
    unfused = layer_bytes(replace(model(), flash=False), Layout(), False, MEGATRON)
    assert unfused - layer_bytes(model(), Layout(), False, MEGATRON) == 5 * 32 * 4096


def test_states_of_experts_are_divided_by_the_ranks_that_hold_the_same_experts() -> None:
    """Each of 64 ranks holds one expert: nobody else has it, and nothing of it is divided."""
    sizes = experts()
    held = sizes.mixed_layers * sizes.expert_parameters
    alone = memory(sizes, Layout(expert=64, shard="zero1"), 64)
    assert alone.states == pytest.approx(12 * held + 12 * (sizes.parameters - 64 * held) / 64, rel=0.01)
    twice = memory(sizes, Layout(expert=64, shard="zero1"), 128)
    assert twice.states == pytest.approx(alone.states / 2, rel=0.01)
    everywhere = memory(sizes, Layout(expert=1, shard="zero3"), 64)
    assert everywhere.states == pytest.approx(8 * sizes.parameters / 64, rel=0.01)
