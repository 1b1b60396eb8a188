"""The page, the CSV and the JSON of `ddlprof recommend`."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from datetime import date
from typing import Any

import pytest

from ddlprof.base.units import duration, significant
from ddlprof.recommender.plans.ranking import front_of, recommend
from ddlprof.report.plans.data import Answer, as_csv, as_json
from ddlprof.report.plans.text import energy_of, render
from tests.unit.recommender.made_up import CATALOG, MadeUp, five_gib_and_half_a_sample, job

CONTRACT = (
    "position,cloud,region,instance_type,nodes,placement,gpus,gpu_model,pricing,batch_per_gpu,global_batch,steps,step_s,"
    "step_low_s,step_high_s,time_h,time_low_h,time_high_h,cost_usd,cost_low_usd,cost_high_usd,compute_s,data_s,h2d_s,"
    "interconnect_s,network_s,other_s,bound_by,memory_gib_needed,fits_memory,meets_budget,extrapolated,price_as_of,reason,"
    "price_basis,list_cost_usd,start_up_s,epoch_start_s,evaluation_s,checkpoint_s,bubble_s,layout,mfu,tokens_per_s,"
    "interruptions_per_hour,interruptions,checkpoint_every_s,interrupted_s,energy_kwh,"
    "memory_verdict,memory_fit_probability,would_fit_with"
)
HOUR = 3600.0


def answer(today: date = date(2026, 8, 1), advice: str | None = None, **question: Any) -> Answer:
    asked: dict[str, Any] = {"samples": 360_000, "budget_s": 24 * HOUR, "max_nodes": 2, "startup_s": 180.0, **question}
    plans = recommend(
        job(), catalog=CATALOG, predictor=MadeUp(), memory=five_gib_and_half_a_sample, **asked
    )  # fmt: skip
    limits = asked["samples"], asked["budget_s"], asked["startup_s"]
    return Answer("job", *limits, plans, front_of(plans), advice, today)


def test_the_csv_has_the_columns_of_the_contract_and_every_candidate() -> None:
    asked = answer(budget_s=4 * HOUR)
    text = as_csv(asked.plans)
    assert text.splitlines()[0] == CONTRACT
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len(rows) == len(asked.plans)
    first = rows[0]
    assert (first["position"], first["instance_type"], first["placement"], first["reason"]) == ("1", "big.1", "1", "")
    assert float(first["time_h"]) == pytest.approx(2.05)
    assert (first["meets_budget"], first["fits_memory"]) == ("true", "true")
    rejected = [row for row in rows if row["reason"]]
    assert {row["position"] for row in rejected} == {""}
    assert [row["position"] for row in rows if not row["reason"]] == [
        str(n + 1) for n in range(len(rows) - len(rejected))
    ]
    slower = next(row for row in rejected if row["instance_type"] == "small.1" and row["nodes"] == "1")
    assert slower["meets_budget"] == "false"
    assert float(slower["time_h"]) == pytest.approx(10.05)
    unknown = next(row for row in rejected if row["instance_type"] == "slice.1")
    assert (unknown["step_s"], unknown["cost_usd"], unknown["meets_budget"]) == ("", "", "")


def test_the_energy_is_that_of_the_boards_for_the_whole_time() -> None:
    asked = answer(budget_s=24 * HOUR)
    for plan in asked.plans:
        expected = 0.4 * plan.gpus * plan.time_s / HOUR if plan.gpu_model == "Big" and plan.time_s is not None else None
        assert plan.energy_kwh == pytest.approx(expected)
    best = asked.plans[0]
    assert best.energy_kwh is not None
    with_carbon = replace(asked, carbon_g_per_kwh=500.0)
    assert energy_of(with_carbon, best).endswith(f"{significant(best.energy_kwh / 2)} kg of CO2")
    assert "CO2" not in render(asked, 3)
    assert "Energy    at most" in render(with_carbon, 3)


def test_a_placement_of_several_nodes_is_one_field() -> None:
    rows = list(csv.DictReader(io.StringIO(as_csv(answer().plans))))
    assert next(row for row in rows if row["nodes"] == "2" and row["gpus"] == "8")["placement"] == "4,4"


def test_the_json_says_the_same_and_more() -> None:
    asked = answer(advice="measure 4,4")
    value = json.loads(as_json(asked))
    assert value["samples"] == 360_000
    assert value["next_measurement"] == "measure 4,4"
    assert value["rejected"] == dict(asked.rejections)
    first = value["plans"][0]
    assert set(CONTRACT.split(",")) <= set(first)
    assert (first["placement"], first["basis"], first["reason"]) == ([1], ["made up"], None)
    assert value["plans"][-1]["position"] is None


def test_the_page_has_plans_and_why_others_were_rejected() -> None:
    page = render(answer(max_nodes=6, advice="a run on 2 x small.1 would narrow the intervals most"), top=3)
    lines = page.splitlines()
    assert lines[0] == "ddlprof  recommend job · 360,000 samples in 24 h"
    assert " ".join(lines[2].split()) == "# INSTANCE GPUS BATCH TIME h [80 %] COST USD [80 %] BOUND BY NOTES"
    assert (
        " ".join(lines[3].split())
        == "1 big.1 1 x 1 8 2.05 [1.65-2.45] 8.2 [6.6-9.8] compute cheapest, extrapolated, 5 other sizes"
    )
    assert [line.split()[1] for line in lines[4:6]] == ["small.1", "small.4"]
    assert "Cheapest  big.1: 2.05 h (up to 2.45 h), 8.2 USD" in page
    assert "Fastest   6 x small.4:" in page
    assert "Rejected  2 candidates: 1 retired, 1 fraction of a GPU" in page
    assert "Rests on  made up" in page
    assert "Next      a run on 2 x small.1" in page
    assert max(map(len, lines)) <= 120
    assert page.endswith("\n")


def test_a_plan_that_is_mostly_carried_over_is_not_about_gpus() -> None:
    asked = answer()
    best = asked.plans[0]
    assert "Mind" not in render(asked, top=3)
    waits = replace(best, time_s=1000.0, epoch_start_s=600.0, start_up_s=140.0, steps=10)
    page = render(replace(asked, plans=[waits, *asked.plans[1:]]), top=3)
    said = " ".join(line[10:] for line in page.split("\n\n")[1].splitlines())
    assert said == (
        "this is not about GPUs: 74 % of the best plan's time is carried over from RUN, most of it for first batches "
        "of epochs, and no GPU shortens it; shorten that first"
    )
    assert best.times is not None
    stalls = replace(best, time_s=1000.0, steps=100, times=replace(best.times, other_s=8.0))
    assert "80 % of the best" in render(replace(asked, plans=[stalls, *asked.plans[1:]]), top=3)
    evaluates = replace(best, time_s=1000.0, evaluation_s=900.0)  # which a GPU shortens
    assert "Mind" not in render(replace(asked, plans=[evaluates]), top=3)


def test_the_page_says_why_what_is_not_plain_was_rejected() -> None:
    asked = answer()
    reasons = ["not predictable: X: unknown"] * 5 + [
        "not predictable: Y: unknown",
        "no price: spot in a",
        "a: 1",
        "a: 2",
    ]
    reasons += ["a: 3", "a: 4", "a: 4", "over budget: up to 3 h, budget 2 h"]
    plans = [replace(asked.plans[0], reason=reason) for reason in reasons]
    page = render(replace(asked, plans=plans, front=[]), top=3)
    assert "every candidate was rejected; the reasons are below" in page
    start = page.index("Rejected")
    assert [line.strip() for line in page[start : page.index("Rests on")].splitlines()] == [
        "Rejected  13 candidates: 6 not predictable, 5 a, 1 no price, 1 over budget",
        "not predictable: X: unknown (5 candidates)",
        "not predictable: Y: unknown (1 candidate)",
        "a: 4 (2 candidates)",
        "a: 1 (1 candidate)",
        "a: 2 (1 candidate)",
        "a: 1 candidate for other reasons; -o FILE.csv has all of them",
        "no price: spot in a (1 candidate)",
    ]


def test_the_page_says_what_is_counted_besides_steps() -> None:
    asked = answer()
    none = "Counted   3 min to start the machines; no evaluations, checkpoints, disks or"
    assert none in render(asked, top=3).splitlines()
    best = replace(asked.plans[0], time_s=1000.0, start_up_s=50.0, evaluation_s=40.0)
    page = render(replace(asked, plans=[best]), top=3)
    counted = page[page.index("Counted") : page.index("Energy")]
    assert " ".join(counted.split()) == (
        "Counted 3 min to start the machines; 5 % start-up of the job, 4 % evaluations; no disks, no traffic"
    )


def test_costs_that_are_close_show_which_is_lower() -> None:
    asked = answer()
    costs = [8.2012, 8.2043, 8.21]
    plans = [replace(asked.plans[0], cost_usd=cost) for cost in costs]
    page = render(replace(asked, plans=plans, front=[]), top=3, all_sizes=True)
    assert [line.split()[8] for line in page.splitlines()[3:6]] == ["8.201", "8.204", "8.21"]
    equal = render(replace(asked, plans=[plans[0]] * 2, front=[]), top=3)
    assert equal.splitlines()[3].split()[8] == "8.2"


def test_old_prices_are_said_to_be_old() -> None:
    assert "days old" not in render(answer(today=date(2026, 8, 1)), top=3)
    page = render(answer(today=date(2026, 11, 21)), top=3)
    assert "Prices    aws us-east-1, of 2026-07-20; 124 days old; newer: ddlprof instances\n" in page


def test_without_why_the_page_is_the_answer_alone() -> None:
    def labels(asked: Answer) -> list[str]:
        lines = render(asked, top=3, why=False).splitlines()[2:]
        return [line.split()[0] for line in lines if line[:1].isalpha() and not line.startswith("GPUS")]

    asked = answer(max_nodes=6, advice="a run on 2 x small.1 would narrow the intervals most")
    assert labels(asked) == ["Cheapest", "Fastest", "Changes", "Rejected"]
    assert labels(replace(asked, today=date(2026, 11, 21)))[-1] == "Prices"
    assert labels(answer(budget_s=60.0)) == ["None", "Rejected"]  # with every reason
    reasons = ["not predictable: X: unknown"] * 5 + ["over budget: by far"] * 2 + ["retired", "no price: spot in a"]
    asked = replace(asked, plans=[asked.plans[0], *(replace(asked.plans[0], reason=reason) for reason in reasons)])
    page = render(asked, top=3, why=False)
    assert "\nRejected  9: 5 not predictable, 2 over budget, 2 other (--why)\n" in page


def test_sizes_to_pad_are_part_of_the_answer() -> None:
    asked = answer()
    padded = replace(asked.plans[0], basis=("pad 50,257 to 50,264: about 20 % faster",))
    page = render(replace(asked, plans=[padded, *asked.plans[1:]]), top=3, why=False)
    assert "Pad       50,257 to 50,264: about 20 % faster" in page


def test_an_impossible_budget_says_what_it_would_take() -> None:
    asked = answer(budget_s=HOUR / 2)
    soonest = asked.plans[0]
    page = " ".join(render(asked, top=3).split())
    assert "no plan meets 30 min. Soonest done is big.1:" in page
    assert f"give a budget of {duration(soonest.time_high_s or 0.0)}" in page
    assert "over budget" in page


def test_a_limit_on_the_cost_that_nothing_keeps() -> None:
    page = " ".join(render(answer(max_cost_usd=1.0), top=3).split())
    assert "what meets the budget costs too much; the cheapest is big.1:" in page


def test_spot_and_assumed_prices_are_marked() -> None:
    page = render(answer(pricing=["on_demand", "spot"]), top=3)
    assert "cheapest, spot, " in page
    assert "s spot: can be taken away at any time" in render(answer(pricing=["on_demand", "spot"]), top=3, columns=80)
    assert "Cheapest  small.1 (spot):" in page
    assert "Second    on demand, if the first is not to be had: big.1:" in page
    assert "Second" not in render(answer(), top=3)
    assert "assumed price" in render(answer(region="us-west-2"), top=3)


@pytest.mark.parametrize("columns", [40, 60, 80, 100, 140])
def test_an_answer_is_as_wide_as_there_is_room(columns: int) -> None:
    """Words where there is room, else letters and fewer columns; always the machines, their time and their cost."""
    page = render(answer(max_nodes=6, pricing=["on_demand", "spot"]), top=8, columns=columns)
    assert max(map(len, page.splitlines()[1:])) <= max(columns, 42)
    rows = [line.split() for line in page.partition("\n\nCheapest")[0].splitlines()[3:] if line[:2].strip().isdigit()]
    assert [row[0] for row in rows] == [str(number) for number in range(1, len(rows) + 1)]
    assert all(row[3 if row[2] == "x" else 1].split(".")[0] in ("big", "small") for row in rows)
    assert ("5 other sizes" in page) == (columns > 100)
    assert ("Cost against time" in page) == (columns >= 80)
    assert "TIME h" in page
    assert "USD" in page


def test_what_interruptions_take_is_said() -> None:
    page = " ".join(render(answer(pricing=["spot"], interruptions={"spot": 0.5}), top=3).split())
    assert "lost to 5." in page
    assert "interruptions, one every 2 h" in page
    assert "interruptions: as often as you say" in page
    assert "which costs least by Daly's formula" in page


def test_the_front_is_listed_fastest_first() -> None:
    page = render(answer(), top=1)
    listed = [line.split()[0] for line in page.splitlines() if line.startswith("  ") and ": " in line]
    assert listed == sorted(listed)
    assert listed[0] == "a"


def test_the_front_stays_within_80_columns_with_a_discount() -> None:
    found = answer()
    front = [replace(plan, instance_type="p6-b300.48xlarge", list_cost_usd=12345.6) for plan in found.front]
    page = render(replace(found, front=front, plans=front), 3)
    assert "at the list's" in page.partition("Cost against time")[2]
    assert max(map(len, page.partition("Nothing beats")[2].splitlines())) <= 80


def test_a_long_front_is_named_in_parts_its_ends_included() -> None:
    asked = answer(max_nodes=40)
    assert len(asked.front) > 8
    page = render(asked, top=1)
    named = [line for line in page.splitlines() if line[:2] == "  " and line[2:3].isalpha() and line[3:5] == "  "]
    assert [line[2] for line in named] == list("abcdefgh")
    assert named[0].split()[3].startswith(asked.front[0].instance_type)
    assert named[-1].split()[1].startswith(asked.front[-1].instance_type)


@pytest.mark.parametrize(
    ("budget_h", "place"), [(6, "the line"), (24, "further right"), (0.5, "further left")], ids=lambda value: str(value)
)
def test_the_budget_is_a_line_where_it_is_in_sight(budget_h: float, place: str) -> None:
    asked = replace(answer(), budget_s=budget_h * HOUR)  # the plans take from 1.3 to 10 hours
    page = render(asked, top=1).partition("Cost against time")[2]
    assert f"The budget of {duration(budget_h * HOUR)} is {place}." in page
    frame, _, _ = page.partition("The budget")
    assert any(line.count("│") == 3 for line in frame.splitlines()) == (place == "the line")


def test_times_are_in_the_unit_of_the_plans_not_of_the_budget() -> None:
    assert "TIME min" in render(answer(samples=3_600, budget_s=100 * HOUR), 1)
    assert "TIME h" in render(answer(budget_s=100 * HOUR), 1)


def test_arm_processors_are_marked() -> None:
    asked = answer()
    arm = replace(asked, plans=[replace(plan, cpu_arch="arm64") for plan in asked.plans])
    assert "a ARM: a processor" in render(arm, 1)
    assert "a ARM: a processor" not in render(asked, 1)


def test_the_cloud_is_a_column_where_plans_are_of_several() -> None:
    header, first = (line for line in render(answer(cloud="any"), 3).splitlines() if line[:2] in ("# ", "1 "))
    assert header.split()[:3] == ["#", "CLOUD", "INSTANCE"]
    assert first.split()[:3] == ["1", "gcp", "other.1"]
    assert "CLOUD" not in render(answer(), 3)


def test_the_price_of_a_market_is_marked() -> None:
    asked = answer(cloud="gcp")
    market = replace(asked, plans=[replace(plan, price_basis="market") for plan in asked.plans])
    legend = "v market price: varies by host and hour"
    assert legend in " ".join(render(market, 3).split())
    assert legend not in render(asked, 3)
