"""The collectives of a step by who issues them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ddlprof.analysis.collectives import match_collectives
from ddlprof.analysis.issued import Issued, IssuedTraffic, issued_by, issued_traffic
from ddlprof.model import codec
from ddlprof.model.issuers import BUFFERS, REDUCER, SCRIPT, Issuers, counted
from ddlprof.model.records import NEVER, CollectiveShape, CollectiveTimes
from ddlprof.model.source_locations import SourceLocation
from ddlprof.store import RankData, load_run
from ddlprof.writing.writer import RankWriter
from tests.unit.writing.test_writer import header, make_collective, make_step

LINE, DDP = SourceLocation("train.py:9 main", SCRIPT), SourceLocation("", REDUCER)
BUFFER = SourceLocation("", BUFFERS)


def rank_of(directory: Path, *issuers: list[SourceLocation | None] | None) -> RankData:
    """A rank with a step for each list of issuers, of collectives of equal shapes."""
    writer = RankWriter(header())
    writer.open(directory)
    number = max(len(each or ()) for each in issuers)
    for index, of_step in enumerate(issuers):
        step = make_step(index, collectives=[make_collective(number * index + k) for k in range(number)])
        step.issuers = of_step
        writer.step(step)
    writer.close()
    return load_run(directory).ranks[0]


def issued_in(rank: RankData) -> list[SourceLocation | None]:
    table = rank.collectives
    return [rank.places.get(table.shapes[shape].issuer) for shape in table.shape]


def test_all_steps_with_a_signature_have_the_issuers_that_one_has_told(tmp_path: Path) -> None:
    rank = rank_of(tmp_path, None, [LINE, DDP], None)
    assert issued_in(rank) == [LINE, DDP] * 3


def test_two_steps_tell_two_parts(tmp_path: Path) -> None:
    """As with two optimizers, each of whose updates counts on its own."""
    rank = rank_of(tmp_path, [LINE, None], [None, DDP])
    assert issued_in(rank) == [LINE, DDP] * 2


def test_a_signature_of_which_nothing_is_told_has_what_is_sure(tmp_path: Path) -> None:
    writer = RankWriter(header())
    writer.open(tmp_path)
    sizes: list[list[int]] = [[10, 20, 20], [10], [20], [30]]
    for index, of_step in enumerate(sizes):
        step = make_step(index, collectives=[make_collective(4 * index + k, size=s) for k, s in enumerate(of_step)])
        step.issuers = [LINE, LINE, DDP] if not index else None
        writer.step(step)
    writer.close()
    assert issued_in(load_run(tmp_path).ranks[0]) == [LINE, LINE, DDP, LINE, None, None]


@pytest.mark.parametrize(
    ("op", "told", "of_new_size"),
    [
        ("allgather", [LINE, LINE, LINE], LINE),
        ("allgather_base", [LINE, LINE, LINE], LINE),
        ("gather", [LINE, LINE, LINE], LINE),
        ("allgather", [LINE, LINE], None),
        ("allgather", [DDP, DDP, DDP], None),
        ("allgather", [LINE, LINE, DDP], None),
        ("allreduce", [LINE, LINE, LINE], None),  # gradients that are averaged by hand
    ],
)
def test_a_new_size_is_of_the_line_that_alone_gathers_many_sizes(
    tmp_path: Path, op: str, told: list[SourceLocation], of_new_size: SourceLocation | None
) -> None:
    """As where a list that grows is gathered; what DDP sends does not vary, so that another size is not of it."""
    writer = RankWriter(header())
    writer.open(tmp_path)
    for index in range(len(told) + 1):
        collective = make_collective(index, size=10 * index + 10)
        collective.op = op
        step = make_step(index, collectives=[collective])
        step.issuers = [told[index]] if index < len(told) else None
        writer.step(step)
    writer.close()
    assert issued_in(load_run(tmp_path).ranks[0]) == [*told, of_new_size]


def test_issuers_of_another_number_of_collectives_are_passed_over(tmp_path: Path) -> None:
    writer = RankWriter(header())
    writer.open(tmp_path)
    writer.step(make_step(0, collectives=[make_collective(0)]))
    for issuers in (Issuers(0, (1, 10**12)), Issuers(7, (1, 1))):
        writer._add_line(codec.encode_issuers(issuers))
    writer.close()
    rank = load_run(tmp_path).ranks[0]
    assert issued_in(rank) == [None]
    assert not rank.notes


def test_numbers_in_a_row_are_counted() -> None:
    lines = [3, 3, -1, 0]
    assert counted(lines) == (4, 2, 0, 1, 1, 1)
    assert list(Issuers(0, counted(lines)).lines()) == lines
    with pytest.raises(ValueError, match="without the number"):
        Issuers(0, (1,))


def ranks_with(tmp_path: Path, exposed_us: list[int], op: str = "allreduce") -> IssuedTraffic:
    """Two ranks whose step has one collective of 1000 µs; the second one issues it 400 µs later."""
    from tests.golden.runs import header as of_rank
    from tests.golden.runs import step, with_collectives, write_rank

    for number, exposed in enumerate(exposed_us):
        times = [CollectiveTimes(100 + 400 * number, 1100, NEVER, exposed)]
        shapes = [CollectiveShape("0", op, 2000, 2)]
        write_rank(tmp_path, of_rank(number, 2), [with_collectives(step(0), (0,))], shapes, times)
    ranks = load_run(tmp_path).ranks
    found = []
    for rank, matched in zip(ranks, match_collectives(ranks), strict=True):
        matched.table.shapes[:] = [CollectiveShape("0", op, 2000, 2, None, 5)]
        found.append(issued_by(matched, np.ones(len(rank.steps), dtype=np.bool_), {5: LINE}))
    return issued_traffic(found, [1, 1])


def test_waiting_for_a_later_rank_is_not_moving_data(tmp_path: Path) -> None:
    (issued,) = ranks_with(tmp_path, [900, 500]).of(SCRIPT)
    assert (issued.place, issued.number, issued.bytes, issued.small) == (LINE, 1, 2000, 1)
    assert issued.exposed_s == pytest.approx(700e-6)
    assert issued.moving_s == pytest.approx(500e-6)
    assert issued.fastest_s == pytest.approx(600e-6)


def test_where_waiting_cannot_be_told_the_rank_that_waits_least_counts(tmp_path: Path) -> None:
    (issued,) = ranks_with(tmp_path, [900, 200], "broadcast").of(SCRIPT)
    assert issued.moving_s == pytest.approx(200e-6)


def test_issuers_of_a_part_of_the_time_are_not_told_apart() -> None:
    from ddlprof.analysis.issued import IssuedByRank

    one = IssuedByRank(1, 100, 1, 100, 100, 1000, 500, 500, None)
    known = {(LINE, "allreduce"): one, (SourceLocation(""), "allreduce"): one}
    assert not issued_traffic([known], [10])
    assert issued_traffic([{(LINE, "allreduce"): one}], [10]).kinds == [
        Issued(LINE, "allreduce", 0.1, 10.0, 0.1, 10.0, 100, 1e-4, 5e-5, 5e-5)
    ]
