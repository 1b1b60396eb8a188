"""Layouts: how they are typed, which contradict themselves, and which do not divide a model."""

from __future__ import annotations

from typing import Any

import pytest

from ddlprof.recommender import Layout, PredictionError, transformer
from ddlprof.recommender.layout import parse_layout

MODEL = transformer(layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=128256, seq=4096).transformer


@pytest.mark.parametrize(
    "layout",
    [
        Layout(),
        Layout(tensor=8, pipeline=4, virtual=5, context=2, expert=4, shard="hsdp:16", recompute="full"),
        Layout(tensor=2, shard="zero2", sequence_parallel=False),
    ],
)
def test_the_text_of_a_layout_is_read_as_that_layout(layout: Layout) -> None:
    assert parse_layout(layout.text()).layout == layout


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tp8,tp4", "'tp4' says a second time"),
        ("zero1,fsdp", "'fsdp' says a second time"),
        ("tp0", "tp0 is less than 1"),
        ("tp8;pp2", "'tp8;pp2' is not known; such as tp8,pp4"),
        ("zero4", "'zero4' is not known"),
        ("hsdp:0", "'hsdp:0' is not known"),
        ("vp4", "virtual stages need a pipeline"),
    ],
)
def test_what_cannot_be_read_is_named(text: str, said: str) -> None:
    with pytest.raises(PredictionError, match=said):
        parse_layout(text)


@pytest.mark.parametrize("wrong", [{"shard": "zero9"}, {"recompute": "some"}, {"tensor": 0}, {"pipeline": 2.5}])
def test_records_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(PredictionError, match="layout"):
        Layout(**wrong)


def test_ranks_follow_from_the_gpus() -> None:
    layout = Layout(tensor=4, pipeline=2, context=2, shard="zero1")
    assert (layout.data_ranks(64), layout.shard_ranks(64)) == (4, 8)
    assert Layout(shard="hsdp:8").shard_ranks(64) == 8
    assert Layout().shard_ranks(64) == 1
    with pytest.raises(PredictionError, match="64 GPUs cannot be divided"):
        Layout(tensor=3).data_ranks(64)
    with pytest.raises(PredictionError, match="hsdp:5 does not divide the 64 data ranks"):
        Layout(shard="hsdp:5").shard_ranks(64)


@pytest.mark.parametrize(
    ("layout", "said"),
    [
        (Layout(tensor=16, pipeline=8), None),
        (Layout(tensor=3), "64 GPUs cannot be divided"),
        (Layout(tensor=64), "32 heads cannot be divided by tensor 64"),
        (Layout(pipeline=16, virtual=4), "32 layers are fewer than pipeline x virtual"),
        (Layout(expert=2), "no experts to divide"),
    ],
)
def test_what_does_not_divide_a_model_is_said(layout: Layout, said: str | None) -> None:
    assert MODEL is not None
    found = layout.problem(MODEL, 128 if said is None else 64)
    assert (found is None) if said is None else said in str(found)


def test_experts_are_divided_among_ranks_that_share_samples() -> None:
    model = transformer(
        layers=4, hidden=512, heads=8, vocab=1000, seq=512, experts=8, experts_per_token=2, expert_ffn=512
    ).transformer
    assert model is not None
    assert Layout(expert=4).problem(model, 8) is None
    assert "4 ranks of a stage cannot be divided by expert 8" in str(Layout(expert=8).problem(model, 4))
    assert "8 experts cannot be divided by expert 3" in str(Layout(expert=3).problem(model, 9))
