"""The page of a search of layouts, and the rows of all that were tried."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from datetime import date
from typing import Any

import pytest

from ddlprof.recommender import Target
from ddlprof.recommender.layout import Layout
from ddlprof.recommender.plans.layouts import recommend_layouts
from ddlprof.recommender.plans.ranking import front_of
from ddlprof.report.plans import html
from ddlprof.report.plans.data import Answer
from ddlprof.report.plans.layout_sections import layout_sections
from ddlprof.report.plans.tried import as_csv, table
from tests.unit.recommender.made_up_layouts import JOB, MadeUpLayouts, gib_of

HOUR = 3600.0


def memory(layout: Layout, gpus: int, size: int, count: int) -> tuple[float, float]:
    gib = gib_of(Target(gpu_model="H100", placement=(8,) * (gpus // 8), batch_per_gpu=size, layout=layout))
    return gib, gib


@pytest.fixture(scope="module")
def answer() -> Answer:
    found = recommend_layouts(
        JOB, samples=1e6, budget_s=1000 * HOUR, global_batch=512, gpus=(64, 128), predictor=MadeUpLayouts(),
        memory=memory, instance_types=["p5.48xlarge", "p4d.24xlarge"],
    )  # fmt: skip
    return Answer(
        "job", 1e6, 1000 * HOUR, 180.0, found.plans, front_of(found.plans), None, date(2026, 11, 1), tried=found.tried
    )


def data_of(page: str) -> dict[str, Any]:
    found = re.findall(r'<script type="application/json" id="data-([\w-]+)">(.*?)</script>', page, re.DOTALL)
    return {name: json.loads(value) for name, value in found}


def test_the_page_has_the_best_layouts(answer: Answer) -> None:
    page = "".join(html.render(answer, 3))
    data = data_of(page)
    for plan in answer.plans:
        assert plan.layout is not None
        assert plan.layout in page
    assert "The best layout on each machine" in page
    parts = data["dimensions"]
    assert len(parts["labels"]) == 3
    assert {"compute", "data parallel"} <= {series["label"] for series in parts["series"]} <= {
        "compute", "bubble", "tensor", "pipeline", "context", "expert", "data parallel", "other",
    }  # fmt: skip
    per_second = {"s": 1.0, "ms": 1e3}[parts["unit"]]
    for number, plan in enumerate(answer.plans[:3]):
        whole = sum(series["values"][number] for series in parts["series"]) / per_second
        assert whole == pytest.approx(plan.step_s, rel=1e-3)


def test_time_against_cost_of_all_layouts(answer: Answer) -> None:
    data = data_of("".join(html.render(answer, 3)))["layout-costs"]
    points = sum(len(group["points"]) for group in data["groups"])
    assert points == sum(bool(each.tried.estimate) for each in answer.tried)
    front, rest = data["groups"]
    assert front["label"] == "nothing is faster and cheaper"
    assert len(front["names"]) == len(data["front"]) == len(front["points"])
    for hours, usd, least_h, most_h, least_usd, most_usd, label in (*front["points"], *rest["points"]):
        assert least_h < hours < most_h
        assert least_usd < usd < most_usd
        assert data["labels"][label]
    cheapest = min(plan.cost_usd or 0.0 for plan in answer.plans)
    assert min(usd for _, usd in data["front"]) == pytest.approx(cheapest, rel=1e-4)


def test_without_layouts_there_is_nothing_about_them(answer: Answer) -> None:
    assert layout_sections(replace(answer, tried=()), 3) == []


def test_no_layout_at_all_is_said(answer: Answer) -> None:
    plans = [replace(plan, layout=None) for plan in answer.plans]
    tried = [each._replace(tried=each.tried._replace(estimate=None)) for each in answer.tried]
    page = "".join(html.render(replace(answer, plans=plans, tried=tried), 3))
    assert page.count("no layout fits on any machine") == 2
    assert "no layout has a time and a price" in page


def test_rows_of_all_that_were_tried(answer: Answer) -> None:
    rows = list(csv.DictReader(io.StringIO(as_csv(answer))))
    assert tuple(rows[0]) == table(answer).heads
    assert len(rows) == len(answer.tried)
    for row in rows:
        assert (row["step_s"] == "") == (row["reason"] != "")
        if not row["reason"]:
            ranks = [int(row[name]) for name in ("tensor", "pipeline", "context", "data")]
            assert ranks[0] * ranks[1] * ranks[2] * ranks[3] == int(row["gpus"])
            assert int(row["micro_batch"]) * int(row["grad_accum"]) * int(row["data"]) == 512
            assert float(row["step_low_s"]) < float(row["step_s"]) < float(row["step_high_s"])
            classes = ("compute_s", "bubble_s", "interconnect_s", "network_s", "other_s")
            assert sum(float(row[name]) for name in classes) == pytest.approx(float(row["step_s"]))
    by_layout = {(row["instance_type"], row["gpus"], row["layout"], row["micro_batch"]): row for row in rows}
    best = answer.plans[0]
    row = by_layout[best.instance_type, str(best.gpus), best.layout or "", str(best.batch_per_gpu)]
    assert float(row["cost_usd"]) == pytest.approx(best.cost_usd)
    assert float(row["time_h"]) == pytest.approx((best.time_s or 0.0) / HOUR)
