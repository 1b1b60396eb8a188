"""The page of simulations."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

from ddlprof.extensions.cluster.report import html as page
from ddlprof.extensions.cluster.report.data import SimulatedData, build
from ddlprof.extensions.cluster.sweep.cases import SimulationCase, cases
from tests.extensions.cluster.golden.simulations import POLICIES, question, result, simulated
from tests.unit.report.html.test_element import Read


def read(data: SimulatedData) -> tuple[str, dict[str, Any]]:
    text = "".join(page.render(data))
    found = re.findall(r'<script type="application/json" id="data-([\w-]+)">(.*?)</script>', text, re.DOTALL)
    shown = Read(re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)).text
    return shown, {name: json.loads(value) for name, value in found}


def test_every_chart_has_a_line_for_each_policy() -> None:
    text, data = read(simulated())
    assert data.keys() == {"sweep", "used", "waiting", "completion"}
    for chart in data.values():
        for view in chart["views"]:
            assert [line["label"] for line in view["lines"]] == list(POLICIES)
    assert [point[0] for point in data["sweep"]["views"][0]["lines"][0]["points"]] == [0.5, 1.2]
    for word in ("Side by side", "Over time", "How long jobs take", "1 job asked for more GPUs", "in 2 of 2 cases"):
        assert word in text


def test_no_policy_wins_where_all_are_equal() -> None:
    first, *others = (result(SimulationCase(policy)) for policy in POLICIES)
    text, _ = read(build(question(seeds=[0]), [first, *(replace(each, summary=first.summary) for each in others)]))
    assert "no difference" in text
    assert "fifo shortest mean completion time" not in text


def test_time_begins_with_the_first_submission() -> None:
    _, data = read(simulated())
    for chart in ("used", "waiting"):
        points = data[chart]["views"][0]["lines"][0]["points"]
        assert points[0][0] == round(5000 / 60, 3)
    assert data["used"]["views"][0]["lines"][0]["points"][0][1] == 100


def test_without_a_sweep_its_chart_is_left_out_with_the_reason() -> None:
    text, data = read(build(question(seeds=[0]), [result(SimulationCase(policy)) for policy in POLICIES]))
    assert "sweep" not in data
    assert "one load and one share of predictable jobs were simulated" in text


def test_a_sweep_over_two_things_has_a_view_for_each() -> None:
    results = [result(case) for case in cases(POLICIES, [0], (0.5, 0.9), (0.0, 0.5, 1.0))]
    _, data = read(build(question(seeds=[0]), results))
    views = data["sweep"]["views"]
    assert [(view["along"], len(view["lines"][0]["points"])) for view in views] == [
        *[("load", 2)] * 3,
        *[("share of jobs that are predictable", 3)] * 2,
    ]
