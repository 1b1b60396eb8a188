"""What holds for the comparison of any two runs."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddlprof.analysis.compare import RunTimes, compare, measured
from ddlprof.analysis.run import analyse
from ddlprof.analysis.shifts import FASTER, NONE, SLOWER, Shift
from ddlprof.model.records import StepRow
from ddlprof.store import RankData, RunData, StepTable
from tests.golden.runs import header, step

MIRRORED = {SLOWER: FASTER, FASTER: SLOWER}


@st.composite
def runs(draw: st.DrawFn) -> list[list[StepRow]]:
    """The steps of each rank; data is measured or not, and steps vary a lot, a little or not at all."""
    ranks, count = draw(st.integers(1, 3)), draw(st.integers(5, 60))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    varied = draw(st.sampled_from([0.0, 0.1, 5.0]))
    has_data = draw(st.booleans())

    def made(number: int) -> StepRow:
        compute, data, other, comm = (base + varied * random.exponential() for base in (8, 1, 1, 0))
        return step(number, compute, data if has_data else None, other, comm)

    return [[made(number) for number in range(count)] for _ in range(ranks)]


def read(rows: list[list[StepRow]], order: list[int] | None = None, shift_ns: int = 0, noise: float = 0.01) -> RunTimes:
    """The run with its ranks in some order, and its clocks set otherwise."""
    ranks = []
    for rank in order or range(len(rows)):
        head = header(rank, len(rows))
        head = replace(head, origin_ns=head.origin_ns + shift_ns, origin_unix_ns=head.origin_unix_ns - shift_ns)
        moved = [replace(row, start_ns=row.start_ns + rank * shift_ns) for row in rows[rank]]
        ranks.append(RankData(head, StepTable.from_rows(moved)))
    return measured(analyse(RunData(("run",), None, ranks))[0], noise=noise)


def close(one: Shift | None, two: Shift | None) -> bool:
    if one is None or two is None:
        return one is two
    if one.low_ns is None or one.high_ns is None or two.low_ns is None or two.high_ns is None:
        return one.low_ns == two.low_ns and one.ns == pytest.approx(two.ns)
    ends = (two.ns, two.low_ns, two.high_ns)
    return (one.ns, one.low_ns, one.high_ns) == pytest.approx(ends, rel=1e-9, abs=1e-3)


@settings(deadline=None, max_examples=40)
@given(runs(), st.sampled_from([0.0, 0.01, 0.3]))
def test_a_run_does_not_differ_from_itself(rows: list[list[StepRow]], noise: float) -> None:
    one = read(rows, noise=noise)
    for difference in compare([one], [one]):
        assert difference.word not in (FASTER, SLOWER)
        assert difference.mean is None or difference.mean.ns == 0


@settings(deadline=None, max_examples=40)
@given(st.lists(runs(), min_size=1, max_size=3), st.lists(runs(), min_size=1, max_size=3))
def test_the_other_way_round_the_words_and_ratios_are_the_other_way_round(
    a: list[list[list[StepRow]]], b: list[list[list[StepRow]]]
) -> None:
    sides = list(map(read, a)), list(map(read, b))
    for there, back in zip(compare(*sides), compare(*sides[::-1]), strict=True):
        assert (there.a_ns, there.b_ns) == (back.b_ns, back.a_ns)
        assert back.word == MIRRORED.get(there.word, there.word)
        if there.name == "step" and there.mean is not None and there.mean.low_ns is not None:
            assert back.mean is not None
            assert back.mean.high_ns is not None
            assert there.a_ns is not None
            assert back.a_ns is not None
            assert (1 + there.mean.low_ns / there.a_ns) * (1 + back.mean.high_ns / back.a_ns) == pytest.approx(1)


@settings(deadline=None, max_examples=40)
@given(runs(), runs(), st.randoms(), st.integers(0, 10**15))
def test_neither_the_order_of_ranks_nor_their_clocks_change_anything(
    a: list[list[StepRow]], b: list[list[StepRow]], random: Random, shift_ns: int
) -> None:
    order = list(range(len(b)))
    random.shuffle(order)
    plain, moved = compare([read(a)], [read(b)]), compare([read(a)], [read(b, order, shift_ns)])
    for one, two in zip(plain, moved, strict=True):
        assert (one.a_ns, one.word) == (two.a_ns, two.word)
        assert close(one.mean, two.mean)
        assert close(one.typical, two.typical)


@settings(deadline=None, max_examples=40)
@given(runs(), runs())
def test_an_interval_holds_its_difference_and_no_time_below_0(a: list[list[StepRow]], b: list[list[StepRow]]) -> None:
    for difference in compare([read(a)], [read(b)]):
        for shift in (difference.mean, difference.typical):
            if shift is not None and shift.low_ns is not None and shift.high_ns is not None:
                assert shift.low_ns <= shift.ns <= shift.high_ns
                assert (shift.word == NONE) == (shift.low_ns <= 0 <= shift.high_ns)
                assert shift.low_ns >= -(1 + 1e-9) * (shift.of_ns or difference.a_ns or 0.0) - 1e-3
