"""What is advised about a late rank, by what is known of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ddlprof.analysis.amounts import Amounts
from ddlprof.analysis.experts import ExpertLoad
from ddlprof.analysis.issued import Issued, IssuedTraffic
from ddlprof.analysis.late_rank import LateRank
from ddlprof.analysis.rules.apply import RULES, apply_rules
from ddlprof.analysis.rules.facts import gather_facts
from ddlprof.analysis.rules.ranks import help_late_rank
from ddlprof.analysis.run import analyse
from ddlprof.analysis.sources import Sources
from ddlprof.analysis.summary import Spread, Summary
from ddlprof.analysis.traffic import CommTotals
from ddlprof.model.issuers import OBJECTS, PACKAGE, REDUCER, SCRIPT
from ddlprof.model.source_locations import LOGGING, SourceLocation
from ddlprof.store import load_run
from tests.golden.runs import MS, header, step, write_rank
from tests.unit.analysis.rules.loop_cases import line
from tests.unit.analysis.rules.made_up import ddp


def test_other_work_on_the_one_machine_of_all_ranks_does_not_hide_why_one_is_late() -> None:
    late = LateRank(1, 0.9, "data", 50 * MS, 20 * MS, queued_share=0.5)
    here = ddp(2, 30, late_rank=late, queued_share=0.5, world_size=2, ranks_per_node=2)
    assert help_late_rank(here).startswith("give rank 1 the same storage")
    assert "processors" in help_late_rank(here)
    assert help_late_rank(replace(here, ranks_per_node=1)).startswith("look at what else runs on rank 1's machine")
    assert help_late_rank(replace(here, late_rank=replace(late, cause=None))).startswith("look at what else runs")


@pytest.mark.parametrize("what", [SCRIPT, OBJECTS, PACKAGE])
def test_a_rank_that_makes_the_batches_of_all_is_told_where_it_sends_them(what: str) -> None:
    late = LateRank(0, 0.9, "other", 50 * MS, 20 * MS, more_ns=30 * MS)
    place = SourceLocation("train.py:9 main", what)
    sent = Issued(place, "scatter", 2, 1e4, largest_bytes=5000, exposed_s=0.014, moving_s=0.001)
    given = ddp(2, 15, late_rank=late, issued=IssuedTraffic([sent]))
    (makes,) = [each for each in apply_rules(given, RULES) if each.rule == "straggler"]
    assert makes.evidence.endswith("ranks wait 15 ms a step, for what is sent at train.py:9 main")
    assert makes.next.startswith("let each rank make its own part of what rank 0 makes")
    assert makes.gain_s == pytest.approx(0.015)  # half of what it makes is left, and the other rank's to do
    for other in (
        replace(given, issued=IssuedTraffic([replace(sent, exposed_s=0.010)])),  # they wait elsewhere too
        replace(given, issued=IssuedTraffic([replace(sent, op="allreduce")])),
        replace(given, issued=IssuedTraffic([replace(sent, place=SourceLocation("", REDUCER))])),
        replace(given, issued=IssuedTraffic([replace(sent, op="broadcast", bytes=4, largest_bytes=4)])),  # to stop?
        replace(given, late_rank=replace(late, cause="compute")),
        replace(given, late_rank=replace(late, others_load=True)),
        replace(given, sources=line(LOGGING)),
    ):
        assert "make its own part" not in help_late_rank(other)
        assert not any("what is sent at" in each.evidence for each in apply_rules(other, RULES))
    header = replace(sent, place=SourceLocation("train.py:8 main", what), largest_bytes=16)  # the sizes, sent first
    waits = IssuedTraffic([header, replace(sent, exposed_s=0.001)])
    assert "make its own part" in help_late_rank(replace(given, issued=waits, sources=line("")))


def seen(samples: int, share: float) -> Sources:
    return replace(line("", share), samples=samples)


def test_what_only_the_late_rank_does_is_told_by_its_line() -> None:
    late = LateRank(0, 0.9, "other", 4 * MS, 0.2 * MS)  # a mean of 2 ms over both ranks
    given = ddp(2, 15, late_rank=late, sources=seen(100, 0.9))
    assert help_late_rank(given).startswith("move what only rank 0 does at train.py:9 main (")
    for other in (
        replace(given, sources=seen(100, 0.5)),  # 2 ms of both together, of which 0.2 may be the other rank's
        replace(given, sources=line("", sure=False)),
        replace(given, sources=seen(40, 0.9)),  # nine tenths of so few may be three quarters
    ):
        assert help_late_rank(other).startswith("move what only rank 0 does (")


@pytest.mark.parametrize("third_ms", [1, 8])
def test_what_others_do_at_the_line_of_a_late_rank_is_left_out(third_ms: int) -> None:
    late = LateRank(0, 0.9, "other", 10 * MS, 1 * MS)  # the typical one of 1, 1 and so many
    means = ddp(2, 15).summary.spreads | {"other": Spread((12 + third_ms) / 4 * MS)}
    given = ddp(2, 15, summary=Summary(means, 100, 0), late_rank=late, world_size=4, sources=seen(400, 0.85))
    assert ("train.py:9" in help_late_rank(given)) == (third_ms == 1)


GRADED_LATE = LateRank(3, 0.9, "compute", 77 * MS, 37 * MS, more_ns=40 * MS)
GRADED_TIMES = {0: [0.016, 0.077], 1: [0.056, 0.037]}
GRADED = ddp(0, 30.5, late_rank=GRADED_LATE, world_size=4, rank_compute_s=GRADED_TIMES)


def test_ranks_none_of_which_computes_as_long_as_another_divide_their_work_evenly() -> None:
    advice = help_late_rank(GRADED)
    assert advice.startswith("divide the work evenly: no two ranks compute equally long (16 ms to 77")
    assert advice.endswith("; then rank 3's device (clocks, temperature, other jobs)")
    (found,) = apply_rules(GRADED, RULES)
    assert found.gain_s == pytest.approx(0.0305)  # the mean is left: 46.5 ms of 77
    (alone,) = apply_rules(replace(GRADED, rank_compute_s={0: [0.037, 0.037, 0.037, 0.077]}), RULES)
    assert alone.gain_s == pytest.approx(0.04)


@pytest.mark.parametrize(
    "times_ms",
    [
        [36, 36, 37, 77],
        [16, 77],
        [100, 125, 220],  # of three, a single gap of the others may be chance
        [16, 36, 37, 77],
        [],  # not known, or of different devices
    ],
)
def test_one_rank_that_differs_from_others_alike_is_looked_at(times_ms: list[int]) -> None:
    other = replace(GRADED, rank_compute_s={0: [each / 1000 for each in times_ms]})
    assert help_late_rank(other).startswith("see what only rank 3 computes")


def test_a_rank_that_waits_for_processors_has_no_uneven_work() -> None:
    late = replace(GRADED_LATE, queued_share=0.2)
    for ranks_per_node in (1, 4):
        assert "evenly" not in help_late_rank(replace(GRADED, late_rank=late, ranks_per_node=ranks_per_node))
    for other in (replace(GRADED_LATE, phases=((40, 79),)), replace(GRADED_LATE, cause="data")):
        given = replace(GRADED, late_rank=other)
        assert "evenly" not in help_late_rank(given)
        (found,) = apply_rules(given, RULES)
        assert found.gain_s == pytest.approx(0.04)


def test_ranks_are_compared_on_devices_of_one_kind_alone(tmp_path: Path) -> None:
    for name, devices in (("alike", ["L4", "L4"]), ("mixed", ["A100", "L4"])):
        for rank, device in enumerate(devices):
            head = header(rank, 2, node=str(rank), device=device)
            write_rank(tmp_path / name, head, [step(n, compute_ms=8 + 8 * rank) for n in range(40)])
    alike, mixed = (
        gather_facts(None, analyse(load_run(tmp_path / name))[0], Sources(0, [])) for name in ("alike", "mixed")
    )
    assert sorted(alike.rank_compute_s.values()) == [[pytest.approx(0.008)], [pytest.approx(0.016)]]
    assert mixed.rank_compute_s == {}


def test_a_rank_with_longer_texts_is_given_shorter_ones() -> None:
    late = LateRank(1, 0.9, "compute", 50 * MS, 20 * MS, more_ns=30 * MS)
    (alike,) = apply_rules(ddp(2, 15, late_rank=late, amounts=Amounts({0: 8, 1: 8}, {0: 99.0, 1: 100.0}, True)), RULES)
    (longer,) = apply_rules(ddp(2, 15, late_rank=late, amounts=Amounts({0: 8, 1: 8}, {0: 25.0, 1: 100.0}, True)), RULES)
    assert "4 times the others' tokens" in longer.evidence
    assert "shuffle" in longer.next
    assert "tokens" not in alike.evidence
    assert "shuffle" not in alike.next
    assert alike.gain_s == pytest.approx(0.03)
    assert longer.gain_s == pytest.approx(0.015)  # half of what it computes more goes to the other rank


def test_a_rank_that_is_late_as_its_experts_are_full_has_no_sick_device() -> None:
    late = LateRank(1, 0.97, "compute", 50 * MS, 20 * MS)
    full = ExpertLoad(imbalance=1.4, fullest=1, fullest_share=1.4, ranks=2, steps=50)
    comm = CommTotals(30e6, None, ["alltoall"], alltoall_s=0.03)
    given = ddp(2, 30, late_rank=late, experts=full, comm=comm, amounts=Amounts({0: 8, 1: 8}, {0: 9.0, 1: 90.0}, False))
    found = apply_rules(given, RULES)
    assert [each.rule for each in found] == ["expert_imbalance"]
    assert found[0].ranks == (1,)
    assert "97 %" in found[0].evidence
    assert help_late_rank(given) == found[0].next
    other = replace(given, late_rank=replace(late, rank=0))
    assert {"straggler", "expert_imbalance"} <= {each.rule for each in apply_rules(other, RULES)}
    assert "load-balancing" not in help_late_rank(other)
    by_data = replace(given, late_rank=replace(late, cause="data"))
    assert "load-balancing" not in help_late_rank(by_data)
