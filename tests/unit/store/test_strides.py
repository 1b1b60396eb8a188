"""Ranks that keep other steps are compared in those that all of them keep."""

from __future__ import annotations

from pathlib import Path

from ddlprof.model.records import Flag
from ddlprof.store import load_run
from ddlprof.writing.retention import Budget
from ddlprof.writing.writer import FinishedStep, RankWriter
from tests.golden.runs import ddp_step, header, manifest
from tests.unit.writing.test_writer import make_collective


def test_a_rank_with_more_collectives_sets_the_stride_of_all(tmp_path: Path) -> None:
    steps = 400
    for rank, many in ((0, 2), (1, 12)):
        writer = RankWriter(header(rank, 2), Budget(10_000, 4_000))
        writer.open(tmp_path)
        for number in range(steps):
            row, _ = ddp_step(0, number)
            flags = Flag.CHECKPOINT if number == 201 and not rank else 0
            row = type(row)(**{**{n: getattr(row, n) for n in row.__slots__}, "flags": int(flags), "signature": -1,
                               "first_seqs": ()})  # fmt: skip
            made = [make_collective(many * number + k, row.start_ns) for k in range(many)]
            writer.step(FinishedStep(row, made, row.start_ns, True))
            writer.flush()
        writer.close()
    manifest(2).write(tmp_path)
    alone, both = tmp_path / "alone", load_run(tmp_path).ranks
    alone.mkdir()
    (tmp_path / "attempt-0").rename(alone / "attempt-0")
    (alone / "attempt-0" / "rank-1.jsonl").unlink()
    (alone / "attempt-0" / "rank-1.steps").unlink()
    (before,) = load_run(alone).ranks
    kept = set(both[0].steps["step"].tolist())
    assert kept - set(both[1].steps["step"].tolist()) <= {201}
    assert 201 in kept
    assert len(kept) < len(before.steps)
    assert [each.step_count for each in both] == [steps, steps]
    for name in ("step_ns", "compute_ns", "data_ns", "other_ns"):
        total = [int(r.steps[name].sum()) + sum(getattr(a, name) for a in r.aggregates) for r in (before, both[0])]
        assert total[0] == total[1]
    table = both[0].collectives
    assert len(table) == 2 * len(both[0].steps)
    assert table.seq.tolist() == [2 * n + k for n in both[0].steps["step"].tolist() for k in range(2)]
