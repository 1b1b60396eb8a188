"""A run of two ranks as they write it today: many blocks and checksums, and steps that are only there as sums."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from ddlprof.model.manifest import Manifest, ModelFacts, TrainingFacts
from ddlprof.model.records import ContextRow, End, Flag, Overhead, RankHeader, StepRow
from ddlprof.model.source_locations import SourceLocation
from ddlprof.writing.retention import Budget
from ddlprof.writing.writer import FinishedStep, RankWriter

MS = 1_000_000
RANKS, STEPS, STEPS_A_FLUSH = 2, 120, 8
LONG_STEP = 50
"""A step of more than four seconds, which is written in a wider form."""
BUDGET = Budget(9_000, 2_000)
ORIGIN_UNIX_NS = 1_767_261_600_000_000_000


def write_run(directory: Path) -> Path:
    """Writes the run; the same bytes each time."""
    for rank in range(RANKS):
        _write_rank(directory, rank)
    Manifest(
        "written", ["train.py"], "written", ORIGIN_UNIX_NS, RANKS, ORIGIN_UNIX_NS, host={"available_cores": 8},
        model=ModelFacts("SmallNet", 4, 8, 125_000, 500_000),
        training=TrainingFacts("SGD", 32, 64, 1, "fp32", "ddp", "gloo", loader_workers=2),
    ).write(directory)  # fmt: skip
    return directory


def _write_rank(directory: Path, rank: int) -> None:
    header = RankHeader(
        rank, RANKS, rank, 0, "host", "node", 100 + rank, "cpu", "host", 5000, ORIGIN_UNIX_NS, "written"
    )
    writer = RankWriter(header, BUDGET)
    writer.open(directory)
    now, place = 0, SourceLocation("train.py:41 log")
    for number in range(STEPS):
        row = _row(rank, number, now)
        collectives = [
            SimpleNamespace(
                group="0", seq=2 * number + which, op="allreduce", bytes=400_000, ranks=RANKS, root=None,
                ready=now + (4 + 3 * which) * MS, end=now + (6 + 3 * which) * MS, need=now + 5 * MS, exposed=MS,
            )
            for which in (0, 1)
        ]  # fmt: skip
        writer.step(FinishedStep(row, collectives, now, True))
        now += row.step_ns
        if number % STEPS_A_FLUSH == STEPS_A_FLUSH - 1:
            writer.context(ContextRow(now, 55.0, 8 << 30, (400 + number) << 20, None, None, None))
            writer.samples(number, {place: 2})
            writer.flush()
    writer.context(Overhead(30_000 * STEPS, STEPS, 5 * MS, now))
    writer.context(End("ok", 0, now))
    writer.close()


def _row(rank: int, number: int, start_ns: int) -> StepRow:
    data, comm, other = (1 + rank) * MS, (3 - rank) * MS, MS + number % 5 * MS // 10
    compute = 5_000 * MS if number == LONG_STEP else 20 * MS
    flags = int(Flag.EPOCH_START) if number % 40 == 0 else 0
    total = compute + data + comm + other
    return StepRow(number, start_ns, total, compute, data, data // 2, data // 4, 0, comm, other, 1, 32, flags)
