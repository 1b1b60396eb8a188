"""What is said of memory: graphs that are kept, objects that workers copy, and what workers take."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddlprof.analysis.rules.apply import RULES, apply_rules
from ddlprof.analysis.slowing import Slowing
from tests.unit.analysis.rules.made_up import ddp, facts
from tests.unit.analysis.rules.memory_cases import GROWTH, LEAKING, SLOWING, WORKERS
from tests.unit.analysis.rules.test_rules import SPEAKS, found


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


def test_workers_that_take_all_memory_matter_the_sooner_it_ends() -> None:
    told = [found("worker_memory", given)[0] for given in SPEAKS["worker_memory"]]
    assert [each.severity for each in told] == ["critical", "warning", "info", "critical", "critical"]
    assert "+1 MiB a step: out of memory in 85 minutes" in told[0].evidence
    assert "out of memory" not in told[2].evidence
    assert "lru_cache(maxsize=...)" in told[0].next


def test_ranks_of_a_machine_share_its_memory() -> None:
    both = [WORKERS, replace(WORKERS, rank=1)]
    (finding,) = found("worker_memory", ddp(2, **LEAKING | {"worker_growths": both}, ranks_per_node=2))
    assert "in 43 minutes" in finding.evidence
    assert finding.ranks == ()
    (finding,) = found("worker_memory", ddp(2, **LEAKING | {"worker_growths": both[1:]}, ranks_per_node=2))
    assert "of rank 1 grows" in finding.title
    assert finding.ranks == (1,)


def test_copies_matter_where_memory_is_scarce() -> None:
    told = [each.severity for given in SPEAKS["copied_objects"] for each in found("copied_objects", given)]
    assert told == ["info", "warning"]
