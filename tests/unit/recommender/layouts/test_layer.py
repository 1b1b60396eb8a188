"""The operators of a layer on one rank: their FLOPs are those of the model, however it is divided."""

from __future__ import annotations

import pytest

from ddlprof.recommender import Layout
from ddlprof.recommender.architecture import Transformer
from ddlprof.recommender.layouts.coefficients import shipped_layouts
from ddlprof.recommender.layouts.layer import Micro, Phase, layer_time, shipped_operators
from tests.unit.recommender.layouts.made_up import H100, experts, model, timed


def kernels(micro: Micro, with_experts: bool = False) -> tuple[Phase, Phase, Phase]:
    return layer_time(micro, with_experts, H100, shipped_operators())


def mfu(sizes: Transformer, layout: Layout, sequences: int, with_experts: bool = False) -> float:
    """Model FLOPs of a layer over the peak during its products and attention."""
    micro = Micro(sizes, layout, sequences)
    forward, backward, _ = kernels(micro, with_experts)
    busy_s = sum(phase.products_s + phase.attention_s for phase in (forward, backward))
    parameters = sizes.dense_parameters(with_experts) + sizes.experts_per_token * sizes.expert_parameters * with_experts
    flops = (6 * parameters + 3 * sizes.attention_flops) * micro.tokens / layout.tensor
    return flops / busy_s / 989.4e12


def test_backward_has_two_products_for_each_and_more_attention() -> None:
    forward, backward, again = kernels(Micro(model(), Layout(), 2))
    assert backward.products_s == pytest.approx(2 * forward.products_s, rel=0.05)
    assert backward.attention_s > 2 * forward.attention_s
    assert (again.products_s, again.attention_s) == (0.0, forward.attention_s)
    assert again.streams_s == pytest.approx(forward.streams_s)


def test_latent_attention_and_experts_have_their_products() -> None:
    latent = model(kv_heads=32, q_lora=1536, kv_lora=512, rope_dim=64, head_dim=192, value_dim=128)
    assert 0.5 < mfu(latent, Layout(), 4) < 0.85
    assert (
        kernels(Micro(experts(), Layout(expert=8), 4), True)[0].kernels
        > kernels(Micro(model(), Layout(), 4))[0].kernels
    )


def test_timing_is_shared_by_coefficients() -> None:
    one = timed()
    other = one.fitted_as(shipped_layouts().of("megatron"))
    layout = Layout(tensor=2)
    assert one.step(layout, 8, 1, 4) == other.step(layout, 8, 1, 4)
