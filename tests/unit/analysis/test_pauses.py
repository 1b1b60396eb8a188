"""Pauses in steady steps: of the garbage collector, and of torch.compile that compiles again."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddlprof.analysis.pauses import broken_graphs, collector_pauses, recompilations
from ddlprof.analysis.run import Attempt, analyse
from ddlprof.analysis.sources import Sources, SourceShare
from ddlprof.model.records import COMPILATION, CollectorPauses, Flag, GraphBreak, JobSpan, RecompileReason
from ddlprof.model.source_locations import SourceLocation
from ddlprof.store import load_run
from tests.golden.runs import MS, Record, header, step, write_rank

STEPS = 40


def attempt_of(directory: Path, records: list[Record], flags: int = 0) -> Attempt:
    """Of a run of 40 steps of 100 ms, of which the first 3 are warm-up."""
    length = step(0, 100).step_ns / MS
    rows = [step(n, 100, start_ms=length * n, flags=flags) for n in range(STEPS)]
    write_rank(directory, header(), rows, records=records)
    (attempt,) = analyse(load_run(directory))
    return attempt


def test_pauses_before_the_steady_steps_do_not_count(tmp_path: Path) -> None:
    length = step(0, 100).step_ns
    records: list[Record] = [
        CollectorPauses(3 * length, 100, 5000 * MS, 4000 * MS, 50),
        CollectorPauses(43 * length, 180, 5400 * MS, 4000 * MS, 90),  # 2 in a step, one of them full: 10 ms
    ]
    pauses = collector_pauses(attempt_of(tmp_path, records).ranks)
    assert pauses is not None
    assert pauses.steps == 37
    assert (pauses.number, pauses.full) == pytest.approx((2, 1))
    assert pauses.seconds == pytest.approx(0.01)
    assert pauses.longest_s == 4


def test_without_readings_nothing_is_known(tmp_path: Path) -> None:
    attempt = attempt_of(tmp_path, [])
    assert collector_pauses(attempt.ranks) is None
    assert recompilations(attempt) is None


@pytest.mark.parametrize("flags", [0, int(Flag.COMPILE)])
def test_compilations_after_the_warm_up_count_with_torchs_last_reason(tmp_path: Path, flags: int) -> None:
    length = step(0, 100).step_ns
    spans = [JobSpan(COMPILATION, length * n + MS, 37 * MS) for n in (0, 1, 5, 6, 7)]
    reasons = [RecompileReason(n, f"size {n}") for n in range(2)]
    again = recompilations(attempt_of(tmp_path, [*spans, *reasons], flags))
    assert again is not None
    assert (again.steps, round(37 * again.number, 6)) == (37, 3)
    assert again.seconds == pytest.approx(0.003)
    assert again.reason == "size 1"


def passes(*shares: tuple[str, float]) -> Sources:
    return Sources(40, [SourceShare(SourceLocation(text), share, False) for text, share in shares])


def test_graphs_are_broken_where_steps_come_by(tmp_path: Path) -> None:
    broken = [GraphBreak(0, "net.py:17 forward", "item()"), GraphBreak(1, "net.py:90 evaluate", "print")]
    write_rank(tmp_path, header(0), [step(n) for n in range(20)], records=broken)
    ranks = analyse(load_run(tmp_path))[0].ranks
    assert [each.place for each in ranks[0].data.graph_breaks] == [each.place for each in broken]
    seen = passes(
        ("net.py:14 Layer.forward", 0.4), ("net.py:18 Layer.torch_dynamo_resume_in_forward_at_17", 0.1),
        ("train.py:9 main", 0.3), ("other.py:17 Layer.forward", 0.2),
    )  # fmt: skip
    found = broken_graphs(ranks, seen)
    assert found is not None
    assert [each.reason for each in found.places] == ["item()"]
    assert found.share == pytest.approx(0.5)
    assert broken_graphs(ranks, passes(("train.py:9 main", 1.0))) is None
