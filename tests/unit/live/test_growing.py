"""One rank's files as they grow: nothing twice, nothing lost, nothing half."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddlprof.base.reading import ReadingError, read_piece
from ddlprof.live import growing as module
from ddlprof.live.follower import LEAST_STEPS
from ddlprof.live.growing import GrowingRank, Read
from ddlprof.model.blocks import LAYOUTS, BlockStream
from ddlprof.model.records import Flag
from ddlprof.store import RankData, load_run
from tests.golden.runs import step
from tests.unit.live.runs import GrowingRun, as_step

GOLDEN = Path(__file__).parents[2] / "golden"
TWO_RANKS = GOLDEN / "two-ranks"


def piece(path: Path) -> Read:
    return lambda begin, end: read_piece(path, begin, end - begin)


def unreadable(begin: int, end: int) -> bytes:
    raise ReadingError("is a FIFO")


def read_all(rank: GrowingRank, text: bytes, steps: bytes = b"") -> None:
    while rank.advance(len(text), lambda begin, end: text[begin:end], len(steps), lambda begin, end: steps[begin:end]):
        pass


def follow(rank: GrowingRank, path: Path) -> bool:
    grew, steps = False, path.with_suffix(".steps")
    while rank.advance(path.stat().st_size, piece(path), steps.stat().st_size, piece(steps)):
        grew = True
    return grew


def recent_of(rank: GrowingRank, seconds: float = 1e9) -> RankData:
    recent = rank.recent(seconds, LEAST_STEPS)
    assert recent is not None
    return recent


def blocks_of(path: Path) -> list[bytes]:
    return [bytes(block.whole) for block in BlockStream(LAYOUTS).take(path.read_bytes())[0]]


@pytest.mark.parametrize("number", [0, 1])
def test_what_is_kept_is_what_the_report_reads(number: int) -> None:
    rank = GrowingRank(f"attempt-0/rank-{number}.jsonl", 10_000)
    follow(rank, TWO_RANKS / f"attempt-0/rank-{number}.jsonl")
    recent, report = recent_of(rank), load_run(TWO_RANKS).ranks[number]
    assert len(report.steps) > 20
    assert recent.steps.rows() == report.steps.rows()
    ours, theirs = recent.collectives, report.collectives
    assert (ours.seq.tolist(), ours.end_us.tolist()) == (theirs.seq.tolist(), theirs.end_us.tolist())
    assert (recent.samples, recent.end, recent.notes) == (report.samples, report.end, report.notes)


@settings(max_examples=30, deadline=None)
@given(cuts=st.lists(st.tuples(st.integers(0, 8_000), st.integers(0, 6_000)), max_size=8))
def test_it_does_not_matter_where_files_were_cut_when_they_were_looked_at(
    cuts: list[tuple[int, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    run = GrowingRun(tmp_path_factory.mktemp("run")).begin()
    for _ in range(5):
        run.train(7)
    text, steps = run.text().read_bytes(), run.steps().read_bytes()
    rank = GrowingRank("r", 1000)
    texts, blocks = (sorted(each) for each in zip(*cuts, strict=True)) if cuts else ([], [])
    for text_end, steps_end in [*zip(texts, blocks, strict=True), (len(text), len(steps))]:
        read_all(rank, text[:text_end], steps[:steps_end])
        assert rank.sums.steps % 7 == 0  # never half of a flush
    assert recent_of(rank).steps["step"].tolist() == list(range(35))
    assert len(recent_of(rank).context) == 5
    assert (rank.sums.steps, rank.damaged, rank.problem) == (35, 0, None)


def test_steps_that_are_seen_before_the_line_that_explains_them_are_told_once_it_is_there() -> None:
    path = TWO_RANKS / "attempt-0/rank-0.jsonl"
    text, steps = path.read_bytes(), path.with_suffix(".steps").read_bytes()
    header = text[: text.index(b"\n") + 1]
    rank = GrowingRank("r", 1000)
    read_all(rank, header + b'["?",0]\n', steps)
    assert len(recent_of(rank).collectives) == 0
    rank = GrowingRank("r", 1000)
    read_all(rank, header + b'["?"', steps)
    read_all(rank, header + b'["?",0]\n' + text[len(header) :], steps)
    assert len(recent_of(rank).collectives) == 60


def test_a_damaged_part_of_the_text_is_left_out_and_counted(tmp_path: Path) -> None:
    run, rank = GrowingRun(tmp_path).begin(), GrowingRank("r", 1000)
    for _ in range(3):
        run.train(10)
    text = run.text().read_bytes()
    assert text.count(b'["c",200000000,') == 1
    read_all(rank, text.replace(b'["c",200000000,', b'["c",210000000,'), run.steps().read_bytes())
    assert (rank.damaged, rank.sums.steps) == (1, 30)
    assert recent_of(rank).context["time_ns"].tolist() == [100e6, 300e6]


def test_a_block_that_was_written_twice_counts_once(tmp_path: Path) -> None:
    run, rank = GrowingRun(tmp_path).begin(), GrowingRank("r", 1000)
    for _ in range(3):
        run.train(10)
    first, second, third = blocks_of(run.steps())
    read_all(rank, run.text().read_bytes(), first + second[:100] + second + second + third)
    assert (rank.damaged, rank.sums.steps) == (0, 30)
    assert recent_of(rank).steps["step"].tolist() == list(range(30))


@pytest.mark.parametrize("steps", [3, 40], ids=["shorter", "longer"])
def test_a_rank_that_was_replaced_is_read_anew(steps: int, tmp_path: Path) -> None:
    run, rank = GrowingRun(tmp_path / "a").begin(), GrowingRank("r", 1000)
    run.train(20)
    follow(rank, run.text())
    other = GrowingRun(tmp_path / "b").begin()
    other.train(steps, compute_ms=3)
    run.text().write_bytes(other.text().read_bytes())
    run.steps().write_bytes(other.steps().read_bytes())
    follow(rank, run.text())
    assert rank.sums.steps == steps
    assert rank.sums.means_ns()["compute"] == 3e6


def test_steps_that_were_replaced_behind_the_same_text_are_read_anew(tmp_path: Path) -> None:
    run, rank = GrowingRun(tmp_path / "a").begin(), GrowingRank("r", 1000)
    run.train(20)
    text = run.text().read_bytes()
    read_all(rank, text, run.steps().read_bytes())
    other = GrowingRun(tmp_path / "b").begin()
    other.train(40, compute_ms=3)
    read_all(rank, text, other.steps().read_bytes())
    assert (rank.sums.steps, rank.damaged) == (40, 0)
    assert rank.sums.means_ns()["compute"] == 3e6


def test_memory_is_bounded(tmp_path: Path) -> None:
    run, rank = GrowingRun(tmp_path).begin(), GrowingRank("r", 50)
    for _ in range(40):
        run.train(10)
    follow(rank, run.text())
    assert rank.sums.steps == 400
    assert recent_of(rank).steps["step"].tolist() == list(range(350, 400))
    assert len(rank._texts) <= 7
    recent_of(rank, 0.2)  # 20 steps, so the least is kept
    assert recent_of(rank, 0.2).steps["step"].tolist() == list(range(370, 400))


def test_sums_tell_of_steps_that_are_not_there_as_rows(tmp_path: Path) -> None:
    run, rank = GrowingRun(tmp_path).begin(), GrowingRank("r", 1000)
    writer = run.writers[0]
    writer._retention.stride = 4
    for number in range(21):
        writer.step(as_step(step(number, compute_ms=8 + number % 2)))
    flagged = replace(step(21), flags=int(Flag.CHECKPOINT))
    writer._retention._unusual_left = 0
    writer.step(as_step(flagged))
    run.end()
    follow(rank, run.text())
    assert recent_of(rank).steps["step"].tolist() == [0, 4, 8, 12, 16, 20]
    assert (rank.sums.steps, rank.sums.usual_steps) == (22, 21)
    assert rank.sums.unusual == {"checkpoint": 1}
    assert rank.sums.measured_ns()["compute"] == (22 * 8 + 10) * 10**6


def test_a_process_without_steps_does_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_PARTS", 7)
    run, rank = GrowingRun(tmp_path).begin(), GrowingRank("r", 50)
    for _ in range(30):
        run.train(0)
    follow(rank, run.text())
    assert len(rank._texts) == 7


def test_only_what_is_added_after_the_first_look_counts_as_growth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK_BYTES", 1000)
    run, rank = GrowingRun(tmp_path).begin(), GrowingRank("r", 1000)
    run.train(10)
    run.train(100)
    assert run.steps().stat().st_size > 2 * run.text().stat().st_size
    follow(rank, run.text())
    assert rank.grew_at is None
    run.train(1)
    follow(rank, run.text())
    assert rank.grew_at is not None


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"not JSON\n", "not JSON"),
        (b"[]\n", "header"),
        (b'{"rank": 0}\n', "columns|missing|is there"),
    ],
    ids=["text", "a list", "half a header"],
)
def test_what_is_no_rank_says_so_and_is_not_read_any_further(content: bytes, problem: str) -> None:
    rank = GrowingRank("r", 50)
    read_all(rank, content + b"more\n")
    read_all(rank, content + b"more\n" * 10)
    assert rank.problem is not None
    assert re.search(problem, rank.problem)
    assert rank.unreadable == (rank.problem, None)
    assert rank.behind(10**9, 10**9) == 0
    assert rank.recent(1, 1) is None
    assert not rank._text.rest


def test_without_end_a_part_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "MAX_PART_BYTES", 4000)
    monkeypatch.setattr(module, "CHUNK_BYTES", 1000)
    run, rank = GrowingRun(tmp_path).begin(), GrowingRank("r", 50)
    run.train(2)
    text, steps = run.text().read_bytes(), run.steps().read_bytes()
    read_all(rank, text, steps)
    read_all(rank, text + b"x" * 9000 + b"\n", steps)
    assert rank.damaged == 1
    assert len(rank._text.rest) <= 5000
