"""What is said of memory: graphs that are kept, and objects that workers copy."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddlprof.analysis.rules.apply import RULES, apply_rules
from ddlprof.analysis.slowing import Slowing
from tests.unit.analysis.rules.made_up import facts
from tests.unit.analysis.rules.test_rules import GROWTH, SLOWING, SPEAKS, found


@pytest.mark.parametrize("slowing", [[], [SLOWING]])
def test_growing_memory_is_that_of_graphs_where_they_are_kept(slowing: list[Slowing]) -> None:
    given = facts(growths=[GROWTH], slowing=slowing, kept_graphs=4)
    (finding,) = apply_rules(given, RULES)
    assert "graphs" in finding.evidence
    assert "loss.item()" in finding.next
    (other,) = apply_rules(replace(given, training=replace(given.training, kept_graphs=0)), RULES)
    assert "graphs" not in other.evidence


def test_kept_graphs_matter_where_memory_rises() -> None:
    assert [each.severity for given in SPEAKS["kept_graphs"] for each in found("kept_graphs", given)] == [
        "info",
        "warning",
    ]


def test_copies_matter_where_memory_is_scarce() -> None:
    told = [each.severity for given in SPEAKS["copied_objects"] for each in found("copied_objects", given)]
    assert told == ["info", "warning"]
