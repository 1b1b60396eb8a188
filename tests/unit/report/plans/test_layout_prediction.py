"""The step of a layout as text and as JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from ddlprof.recommender import Target
from ddlprof.recommender.layout import parse_layout
from ddlprof.report.plans.layout_prediction import LayoutPrediction, as_json, render
from tests.unit.recommender.made_up_layouts import MadeUpLayouts


def step(text: str, value: str = "", **named: Any) -> LayoutPrediction:
    target = Target(
        gpu_model="H100", placement=(8,) * 8, batch_per_gpu=1, grad_accum=16, layout=parse_layout(text).layout
    )
    return LayoutPrediction(target, MadeUpLayouts().predict(target), 4096, value, usable_gib=70.0, **named)


def test_one_layout() -> None:
    """16 sequences over 8 ranks of a copy are 2.1 s with selective recomputation; the bubble is 1.75 / 16 of it."""
    out = render("job", [step("tp2,pp4,zero1,selective", assumed=("batch: assumed",))])
    assert out.splitlines() == [
        "ddlprof  predict job · tp2,pp4,zero1,selective · 8 x 8 on H100",
        "Layout   tensor 2 x pipeline 4 x data 8 = 64 GPUs; shard zero1, recompute selective",
        "Batch    1 sequence of 4,096 tokens x 16 micro-batches x 8 data ranks = 128 sequences, 524 k tokens",
        "Step     2804 ms, 80 % interval 2243 to 3505 ms",
        "         compute       2100 ms  75 %",
        "         data             0 ms   0 %",
        "         h2d              0 ms   0 %",
        "         interconnect   210 ms   7 %",
        "         network        100 ms   4 %",
        "         other            0 ms   0 %",
        "         bubble         394 ms  14 %",
        "Links    exposed communication: tensor 210 ms, data 100 ms",
        "Bound by compute",
        "Speed    186,995 tokens/s, 2,922 a GPU, MFU 37 %",
        "Memory   15.0 GiB needed of the 70.0 GiB of a GPU that a process gets",
        "Rests on batch: assumed",
        "         made up",
    ]


def test_json() -> None:
    one = step("tp2,pp4,vp2,zero1")
    value = json.loads(as_json("job", [one]))
    assert one.estimate is not None
    assert value["target"]["layout"]["virtual"] == 2
    assert (value["job"], value["layout"], value["gpus"], value["data"]) == ("job", "tp2,pp4,vp2,zero1", 64, 8)
    assert value["estimate"]["bubble_s"] == one.estimate.times.bubble_s
    assert value["estimate"]["dimensions"] == one.estimate.dimensions
    assert value["tokens_per_s_per_gpu"] * 64 == value["tokens_per_s"] == 128 * 4096 / one.estimate.step_s
    assert (value["memory_gib_needed"], value["fits_memory"]) == (20.0, True)


def test_side_by_side() -> None:
    failed = LayoutPrediction(step("tp1").target, None, 4096, "16", "no such thing")
    found = [step("tp1", "1"), step("tp2", "2"), failed]
    out = render("job", found, "tensor")
    assert out.startswith(
        "ddlprof  predict job · 3 values of tensor · 64 GPUs · 1,024 or 512 sequences of 4,096 tokens"
    )
    rows = [line.split() for line in out.splitlines() if line[:1].isdigit()]
    assert [row[:3] for row in rows] == [["1", "1", "tp1"], ["2", "2", "tp2"], ["3", "16", "tp1"]]
    assert rows[0][-1] == "!"
    assert rows[1][-1] == "35.0"
    assert set(rows[2][3:]) == {"-"}
    assert "No step  3: no such thing" in out
    assert [each["value"] for each in json.loads(as_json("job", found))["predictions"]] == ["1", "2", "16"]


def test_what_does_not_fit_is_said() -> None:
    barely = step("tp1")
    assert barely.estimate is not None
    perhaps = replace(barely.estimate, fits_memory=True, memory_verdict="fits perhaps", memory_fit_probability=0.5)
    said = render("job", [replace(barely, estimate=perhaps)])
    assert "Memory   fits perhaps (50 %), 70.0 GiB needed of the 70.0 GiB" in said
    assert "Memory   does not fit, 70.0 GiB needed of the 69.0 GiB" in render("job", [replace(barely, usable_gib=69.0)])
