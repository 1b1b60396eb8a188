"""Which layers get adapters: by names, or as PEFT has it."""

from __future__ import annotations

import pytest

from ddlprof.model.operators import Layer, StepOperators
from ddlprof.recommender import PredictionError
from ddlprof.recommender.compute.adapter_targets import targeted, targets_of, usual_targets

SQUARE, WIDE, TALL = (64, 64), (256, 64), (64, 256)
NAMES = {"q_proj": SQUARE, "k_proj": (16, 64), "v_proj": (16, 64), "o_proj": SQUARE, "up_proj": WIDE, "down_proj": TALL}
LINEAR = {*NAMES.values()}


def step(names: dict[str, tuple[int, int]] = NAMES) -> StepOperators:
    layers = [Layer(f"model.layers.{n}.{name}", 1.0, 1.0, shape) for n in range(3) for name, shape in names.items()]
    return StepOperators(1, "bf16", (), layers=(Layer("embed", 1.0, 0.0, (1000, 64)), Layer("norm", 1.0, 0.0), *layers))


@pytest.mark.parametrize(
    ("names", "targets"),
    [
        ("q_proj k_proj v_proj o_proj gate_proj up_proj down_proj", "q_proj v_proj"),  # Llama
        ("q_proj k_proj v_proj out_proj fc1 fc2", "q_proj v_proj"),  # OPT
        ("q_proj k_proj v_proj dense fc1 fc2", "q_proj v_proj fc1 fc2"),  # Phi
        ("query key value dense", "query value"),  # BERT
        ("q k v o wi wo", "q v"),  # T5
        ("c_attn c_proj c_fc", "c_attn"),  # GPT-2
        ("query_key_value dense dense_h_to_4h dense_4h_to_h", "query_key_value"),  # BLOOM
        ("in_proj dense", "in_proj"),  # DeBERTa
        ("q_proj k_proj v_proj o_proj in_proj out_proj up_proj down_proj", "q_proj k_proj v_proj o_proj"),  # Nemotron-H
        ("key value receptance output", "key value receptance output"),  # RWKV
        ("up down", None),
    ],
)
def test_without_targets_they_are_those_of_peft(names: str, targets: str | None) -> None:
    assert usual_targets(names.split()) == (targets and tuple(targets.split()))


def test_a_share_of_the_layers_of_a_shape_is_chosen() -> None:
    assert targeted(step(), None, LINEAR) == {SQUARE: 0.5, (16, 64): 0.5, WIDE: 0.0, TALL: 0.0}
    assert targeted(step(), "up_proj, k_proj", LINEAR) == {SQUARE: 0.0, (16, 64): 0.5, WIDE: 1.0, TALL: 0.0}
    assert targeted(step(), "2.down_proj", LINEAR)[TALL] == pytest.approx(1 / 3)
    assert set(targeted(step(), "all-linear", LINEAR).values()) == {1.0}
    assert targets_of(step(), None, LINEAR) == ("q_proj", "v_proj")


def test_a_model_of_which_peft_knows_nothing_has_adapters_everywhere() -> None:
    for unknown in (step({"up": WIDE, "down": TALL}), StepOperators(1, "bf16", ())):
        assert set(targeted(unknown, None, LINEAR).values()) == {1.0}


@pytest.mark.parametrize("target", ["proj", "embed", "q_proj,lm_head", ""])
def test_a_target_that_no_linear_layer_has_is_refused(target: str) -> None:
    with pytest.raises(PredictionError, match=r"no linear layer is called .*; there are down_proj, k_proj"):
        targeted(step(), target, LINEAR)


def test_names_need_a_step_that_has_them() -> None:
    with pytest.raises(PredictionError, match="count the step again"):
        targeted(StepOperators(1, "bf16", ()), "q_proj", LINEAR)
