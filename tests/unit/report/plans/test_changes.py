"""What would change an answer, in words."""

from __future__ import annotations

import re
from dataclasses import replace

from ddlprof.report.plans.changes import changes_of, unchanged_in_words
from ddlprof.report.plans.html import render as page
from ddlprof.report.plans.text import render
from tests.unit.report.html.test_element import Read
from tests.unit.report.plans.test_text import HOUR, answer


def test_each_change_is_one_sentence() -> None:
    asked = answer(pricing=["on_demand", "spot"], batch_per_gpu=(2, 8, 64), max_nodes=1, startup_s=0.0)
    assert dict(changes_of(asked)) == {
        "Price": "big.1 would be the cheapest at a price 37 % lower, or if small.1 (spot) cost 59 % more",
        "Deadline": "with less than 12.2 h instead of 24 h big.1 would be the cheapest, at 8 USD",
        "Batch": "with 64 samples per GPU instead of 2 big.1 would be the cheapest, at 8 USD",
    }


def test_a_deadline_that_is_longer_or_that_nothing_else_keeps() -> None:
    longer = dict(changes_of(answer(budget_s=2.39 * HOUR, startup_s=0.0, max_nodes=6)))["Deadline"]
    assert longer.startswith("with 2.4 h instead of 2.39 h big.1 would be the cheapest")
    alone = dict(changes_of(answer(instance_types=["big.1"], max_nodes=1, startup_s=0.0)))
    assert alone == {"Deadline": "with less than 2.4 h instead of 24 h no plan that was tried would be in time"}


def test_a_batch_that_changes_nothing_is_said_to() -> None:
    assert unchanged_in_words(answer()) == "only one was tried (8 per GPU); --batch B,... tries others"
    same = answer(batch_per_gpu=(2, 8, 64))
    assert unchanged_in_words(same) == "the same machines with each that was tried: 2, 8, 64 per GPU"
    assert unchanged_in_words(answer(budget_s=60.0)) == ""


def test_the_table_and_the_page_have_the_same_changes() -> None:
    asked = answer()
    text = " ".join(render(asked, 3).split())
    without_scripts = re.sub(r"<(script|style).*?</\1>", "", "".join(page(asked, 3)), flags=re.DOTALL)
    written = " ".join(Read(without_scripts).text.split())
    changes = dict(changes_of(asked))
    assert set(changes) == {"Price", "Deadline"}
    for change in changes.values():
        assert change in text
        assert change in written
    opening = ["Which machines train job on 360,000 samples within 24 h", "cheapest of", "Each point is a plan"]
    places = [written.index(words) for words in [*opening, changes["Price"], "The predicted step of the best plans"]]
    assert places == sorted(places)
    assert "from 99 min to 2.45 h and from 6.6 to 9.8 USD" in written


def test_an_answer_without_plans_has_no_changes() -> None:
    none = answer(budget_s=60.0)
    assert list(changes_of(none)) == []
    assert "Changes" not in render(none, 3)
    assert "there is no answer to change" in "".join(page(none, 3))


def test_the_highest_cost_is_part_of_the_question() -> None:
    assert "at most 20 USD" in "".join(page(replace(answer(), max_cost_usd=20.0), 3))
