"""Which layouts are tried, and which rule leaves others out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ddlprof.recommender import PredictionError
from ddlprof.recommender.architecture import Transformer
from ddlprof.recommender.layout import Layout, require_layouts
from ddlprof.recommender.plans.layouts import MACHINE_RULES
from ddlprof.recommender.search.rules import RULES, Space
from tests.unit.recommender.made_up_layouts import EXPERTS, JOB

DOCS = Path(__file__).parents[4] / "docs/layouts.md"
MODEL = require_layouts(JOB.transformer, "job")
LONG = require_layouts(EXPERTS.transformer, "job")


def options(model: Transformer = MODEL, gpus: int = 64, domain: int = 8, batch: int = 256) -> dict[str, str]:
    """The rule against each option, by layout and micro-batch."""
    return {
        f"{option.layout.text()} mb{option.micro_batch}": rule
        for option, rule in Space(model, gpus, domain, batch).options()
    }


def test_every_layout_is_tried_once() -> None:
    found = list(Space(MODEL, 64, 8, 256).options())
    assert len({(option.layout, option.micro_batch) for option, _ in found}) == len(found)
    for option, rule in found:
        if not rule:
            assert option.layout.problem(MODEL, 64) is None
            assert option.micro_batch * option.micro_batches * option.layout.data_ranks(64) == 256
    assert {rule for _, rule in found} <= {"", *RULES}


def test_heads_are_divided() -> None:
    assert options(replace(MODEL, heads=4, kv_heads=4))["tp8 mb1"] == "divisible"


def test_the_global_batch_is_divided() -> None:
    assert options(batch=100)["tp4 mb1"] == "global batch"
    assert options(batch=32)["tp1 mb1"] == "global batch"
    assert options(batch=64)["tp1 mb1"] == ""


def test_context_and_experts() -> None:
    contexts = {option.layout.context for option, _ in Space(LONG, 64, 8, 256).options()}
    experts = {option.layout.expert for option, _ in Space(LONG, 64, 8, 256).options()}
    assert contexts == {1, 2, 4}
    assert experts == {1, 2, 4, 8}
    plain = {(option.layout.context, option.layout.expert) for option, _ in Space(MODEL, 64, 8, 256).options()}
    assert plain == {(1, 1)}


def test_what_data_ranks_divide() -> None:
    space = Space(MODEL, 8, 8, 256)
    assert space.shards(Layout(tensor=8)) == ("none",)
    assert space.shards(Layout(tensor=2)) == ("zero1", "zero3")
    assert space.shards(Layout(tensor=2, pipeline=2)) == ("zero1",)


def test_a_model_without_sizes_has_no_layouts() -> None:
    with pytest.raises(PredictionError, match="job: layouts need the sizes of a transformer"):
        require_layouts(None, "job")


@pytest.mark.parametrize("sentence", [*RULES.values(), *MACHINE_RULES.values()])
def test_the_documentation_has_every_rule(sentence: str) -> None:
    assert sentence in " ".join(DOCS.read_text(encoding="utf-8").split())
