"""One rank's file as it grows: nothing twice, nothing lost, nothing half."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddlprof.base.reading import read_piece
from ddlprof.live import growing as module
from ddlprof.live.follower import LEAST_STEPS
from ddlprof.live.growing import GrowingRank, Read
from ddlprof.store import load_run
from tests.unit.live.runs import GrowingRun

GOLDEN = Path(__file__).parents[2] / "golden"
RECORDED = sorted((GOLDEN / "recorded").glob("*/attempt-0/rank-0.jsonl"))


def piece(path: Path) -> Read:
    return lambda begin, end: read_piece(path, begin, end - begin)


def nothing(begin: int, end: int) -> bytes:
    return b""


def read_all(rank: GrowingRank, content: bytes) -> None:
    while rank.advance(len(content), lambda begin, end: content[begin:end]):
        pass


def follow(rank: GrowingRank, path: Path) -> bool:
    grew = False
    while rank.advance(path.stat().st_size, piece(path)):
        grew = True
    return grew


def test_each_part_counts_once(tmp_path: Path) -> None:
    run, rank = GrowingRun(tmp_path).begin(), GrowingRank("r", 1000)
    for number in range(1, 4):
        run.train(10)
        assert follow(rank, run.text())
        assert not follow(rank, run.text())
        assert (rank.sums.steps, rank.sums.last_step) == (10 * number, 10 * number - 1)
    assert rank.sums.means_ns()["step"] == 10e6
    assert rank.sums.samples == 30 * 32
    assert rank.end is None
    run.end()
    follow(rank, run.text())
    assert rank.end is not None
    assert rank.end.status == "ok"


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.parents[1].name)
def test_what_is_kept_is_what_the_report_reads(path: Path) -> None:
    rank = GrowingRank("attempt-0/rank-0.jsonl", 10_000)
    follow(rank, path)
    recent = rank.recent(piece(path.with_suffix(".collectives")), 1e9, LEAST_STEPS)
    report = next(each for each in load_run(path.parents[1]).ranks if each.rank == 0)
    assert recent is not None
    assert len(recent.steps) == len(report.steps)
    count = len(recent.steps)
    assert recent.steps.rows() == report.steps.rows()[:count]
    ours, theirs = recent.collectives, report.collectives
    assert ours.seq.tolist() == theirs.seq[theirs.row < count].tolist()
    assert ours.end_us.tolist() == theirs.end_us[theirs.row < count].tolist()
    assert len(recent.calibration) == len(report.calibration)
    assert [note.message for note in recent.notes] == [note.message for note in report.notes]


@settings(max_examples=30, deadline=None)
@given(cuts=st.lists(st.integers(0, 12_000), max_size=8))
def test_it_does_not_matter_where_a_file_was_cut_when_it_was_looked_at(
    cuts: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    run = GrowingRun(tmp_path_factory.mktemp("run")).begin()
    for _ in range(5):
        run.train(7)
    content = run.text().read_bytes()
    rank = GrowingRank("r", 1000)
    for cut in [*sorted({min(cut, len(content)) for cut in cuts}), len(content)]:
        read_all(rank, content[:cut])
        assert rank.sums.steps % 7 == 0  # never half of a flush
    recent = rank.recent(nothing, 1e9, 30)
    assert recent is not None
    assert recent.steps["step"].tolist() == list(range(35))
    assert (rank.sums.steps, rank.damaged, rank.problem) == (35, 0, None)


def test_a_damaged_part_is_left_out_and_counted(tmp_path: Path) -> None:
    run, rank = GrowingRun(tmp_path).begin(), GrowingRank("r", 1000)
    for _ in range(3):
        run.train(10)
    lines = run.text().read_bytes().split(b"\n")
    number = next(index for index, line in enumerate(lines) if line.startswith(b'["s",15,'))
    lines[number] = lines[number].replace(b'["s",15,', b'["s",16,')
    read_all(rank, b"\n".join(lines))
    assert (rank.damaged, rank.sums.steps) == (1, 20)
    recent = rank.recent(nothing, 1e9, 30)
    assert recent is not None
    assert recent.steps["step"].tolist() == list(range(20, 30))


@pytest.mark.parametrize("steps", [3, 40], ids=["shorter", "longer"])
def test_a_file_that_was_replaced_is_read_anew(steps: int, tmp_path: Path) -> None:
    run, rank = GrowingRun(tmp_path / "a").begin(), GrowingRank("r", 1000)
    run.train(20)
    follow(rank, run.text())
    other = GrowingRun(tmp_path / "b").begin()
    other.train(steps, compute_ms=3)
    run.text().write_bytes(other.text().read_bytes())
    follow(rank, run.text())
    assert rank.sums.steps == steps
    assert rank.sums.means_ns()["compute"] == 3e6


def test_memory_is_bounded(tmp_path: Path) -> None:
    run, rank = GrowingRun(tmp_path).begin(), GrowingRank("r", 50)
    for _ in range(40):
        run.train(10)
    follow(rank, run.text())
    assert rank.sums.steps == 400
    recent = rank.recent(nothing, 1e9, LEAST_STEPS)
    assert recent is not None
    assert recent.steps["step"].tolist() == list(range(350, 400))
    rank.recent(nothing, 0.2, LEAST_STEPS)  # 20 steps, so the least is kept
    recent = rank.recent(nothing, 0.2, LEAST_STEPS)
    assert recent is not None
    assert recent.steps["step"].tolist() == list(range(370, 400))


def test_a_process_without_steps_does_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_PARTS", 7)
    run, rank = GrowingRun(tmp_path).begin(), GrowingRank("r", 50)
    for _ in range(30):
        run.train(0)
    follow(rank, run.text())
    assert len(rank._window) == 7


@pytest.mark.parametrize(
    ("content", "problem"),
    [(b"not JSON\n", "not JSON"), (b"[]\n", "header"), (b'{"rank": 0}\n', "columns|missing|is there")],
    ids=["text", "a list", "half a header"],
)
def test_what_is_no_rank_says_so_and_is_not_read_any_further(content: bytes, problem: str) -> None:
    rank = GrowingRank("r", 50)
    read_all(rank, content)
    read_all(rank, content + b"more\n" * 10)
    assert rank.problem is not None
    assert rank.recent(nothing, 1, 1) is None


def test_without_end_a_part_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "MAX_PART_BYTES", 2000)
    run, rank = GrowingRun(tmp_path).begin(), GrowingRank("r", 50)
    run.train(2)
    content = run.text().read_bytes()
    read_all(rank, content)
    garbage = content + b"x" * 5000 + b"\n"
    read_all(rank, garbage)
    assert rank.damaged == 1
    assert len(rank._rest) < 2000
