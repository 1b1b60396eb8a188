"""A step under a layout: its parts, the bubble by formula, and what each dimension adds."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddlprof.recommender import Layout
from ddlprof.recommender.layouts.coefficients import shipped_layouts
from ddlprof.recommender.layouts.time import LayoutStep, divide
from tests.unit.recommender.layouts.made_up import experts, timed


def step(layout: Layout, gpus: int = 64, sequences: int = 1, count: int = 16, **how: object) -> LayoutStep:
    return timed(**how).step(layout, gpus, sequences, count)  # type: ignore[arg-type]


@given(
    tensor=st.sampled_from([1, 2, 4, 8]),
    pipeline=st.sampled_from([1, 2, 4]),
    context=st.sampled_from([1, 2]),
    shard=st.sampled_from(["none", "zero1", "zero2", "zero3", "hsdp:2"]),
    recompute=st.sampled_from(["none", "selective", "full"]),
    count=st.integers(1, 64),
)
@settings(max_examples=60, deadline=None)
def test_all_parts_are_there_and_none_is_negative(
    tensor: int, pipeline: int, context: int, shard: str, recompute: str, count: int
) -> None:
    layout = Layout(tensor=tensor, pipeline=pipeline, context=context, shard=shard, recompute=recompute)
    found = step(layout, 128, 1, count)
    sent = found.dimensions
    assert found.step_s == pytest.approx(
        found.compute_s + found.other_s + found.bubble_s + sum(each.seconds for each in sent.values())
    )
    assert min(found.compute_s, found.other_s, found.bubble_s, *(each.seconds for each in sent.values())) >= 0.0
    assert all(0.0 <= each.inside_s <= each.seconds * (1 + 1e-9) for each in sent.values())
    degrees = {"tensor": tensor, "pipeline": pipeline, "context": context, "expert": 1}
    assert {name for name, degree in degrees.items() if degree > 1} == {
        name for name in degrees if sent[name].seconds > 0
    }


def test_stages_share_layers_so_that_the_slowest_is_fast() -> None:
    assert divide(32, 4, 1.0, 0.0) == (8, 8, 8, 8)
    assert divide(32, 4, 1.0, 2.0) == (9, 8, 8, 7) or max(divide(32, 4, 1.0, 2.0)[:3]) <= 9
    assert sum(divide(126, 16, 1.0, 1.2)) == 126
    assert divide(5, 1, 1.0, 9.0) == (5,)
    assert divide(16, 2, 1.0, 4.0) == (10, 6)


def test_sharded_parameters_are_gathered_in_every_micro_batch() -> None:
    slow = {"network_gb_s": 1.0}
    one, many = (step(Layout(shard="zero3"), 64, 1, n, **slow).dimensions["data"].seconds for n in (1, 8))
    assert many == pytest.approx(8 * one, rel=0.02)
    plain = [step(Layout(shard="zero1"), 64, 1, n, **slow).dimensions["data"].seconds for n in (1, 8)]
    assert plain[1] < 1.1 * plain[0]
    hybrid = step(Layout(shard="hsdp:8"), 64, 1, 8, **slow).dimensions["data"].seconds
    assert hybrid < many


def test_experts_send_their_tokens() -> None:
    found = step(Layout(expert=8), 64, 2, 4, sizes=experts())
    wide = step(Layout(expert=64), 64, 2, 4, sizes=experts())
    assert 0 < found.dimensions["expert"].seconds < wide.dimensions["expert"].seconds


def test_software_without_overlap_waits_longer() -> None:
    tuned, plain = (step(Layout(tensor=8), software=name) for name in ("megatron", "nanotron"))
    assert plain.dimensions["tensor"].seconds > 2 * tuned.dimensions["tensor"].seconds
    assert plain.step_s > tuned.step_s


def test_the_time_grows_with_the_work() -> None:
    layout = Layout(tensor=4, pipeline=2, shard="zero1")
    base = step(layout)
    assert step(layout, count=32).step_s > 1.8 * base.step_s
    assert step(layout, sequences=2, count=8).step_s < 1.05 * base.step_s
    assert step(replace(layout, tensor=8, pipeline=1)).step_s != base.step_s


def test_gradients_hide_behind_larger_micro_batches_unless_states_are_divided_without_overlap() -> None:
    def exposed_s(shard: str, software: str, sequences: int) -> float:
        return step(Layout(shard=shard), 64, sequences, 1, software=software).dimensions["data"].seconds

    assert exposed_s("none", "nanotron", 2) < 0.5 * exposed_s("none", "nanotron", 1)
    assert exposed_s("zero1", "nanotron", 2) > 0.7 * exposed_s("zero1", "nanotron", 1)
    assert exposed_s("zero1", "megatron", 2) < 0.2 * exposed_s("zero1", "nanotron", 2)


def test_an_interleaved_pipeline_sends_behind_computation() -> None:
    plain, parts = (step(Layout(pipeline=4, virtual=parts), network_gb_s=5.0) for parts in (1, 2))
    assert parts.dimensions["pipeline"].seconds < 0.2 * plain.dimensions["pipeline"].seconds


def test_gradients_in_fewer_bytes_are_reduced_faster() -> None:
    def exposed_s(shard: str, **changes: float) -> float:
        time = timed(network_gb_s=2.0)
        fitted = replace(shipped_layouts().of("megatron"), **changes)  # type: ignore[arg-type]
        return time.fitted_as(fitted).step(Layout(shard=shard), 64, 1, 1).dimensions["data"].seconds

    for shard in ("none", "zero1", "zero3"):
        assert exposed_s(shard, reduced_bytes=2.0) < 0.8 * exposed_s(shard)
    for shard in ("zero1", "zero3"):
        assert exposed_s(shard, gathered_bytes=1.0) < 0.9 * exposed_s(shard)
    assert exposed_s("none", gathered_bytes=1.0) == exposed_s("none")
