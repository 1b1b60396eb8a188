"""What ranks wrote when they stood still is read from the run directory; damage is noted and left out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ddlprof.analysis.hangs import hang_of
from ddlprof.base.errors import UserError
from ddlprof.importing.writing import write_states
from ddlprof.model.hang import RankState, ThreadState
from ddlprof.store import load_run
from tests.golden.runs import header, step, write_rank

ABORTED = """\
Fatal Python error: Aborted

Thread 0x00007facd6b296c0 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 331 in wait

Thread 0x00007facf681db80 (most recent call first):
  File "/opt/site-packages/torch/distributed/distributed_c10d.py", line 3252 in all_reduce
  File "/home/me/train.py", line 99 in metric
"""


def state(rank: int) -> RankState:
    return RankState(
        rank=rank, world_size=2, attempt=0, host="a", pid=1, unix_ns=10**18, first_unix_ns=10**18 - 1, answers_s=0.0,
        status="trains", stands=True, quiet_s=9.0, since_step_s=9.0, limit_s=3.0, step=4, doing="script",
        thread=ThreadState("training", f"train.py:{rank} main", "", []), cores=0.0,
    )  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Path:
    write_states([state(0), state(1)], "job", tmp_path / "run")
    return tmp_path / "run"


def test_states_are_read_with_the_run(run: Path) -> None:
    assert load_run(run).standing == [state(0), state(1)]
    found = hang_of(load_run(run))
    assert found is not None
    assert found.ranks == [0, 1]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"rank": 1}', "\x00" * 50, '{"rank": "x", "world_size": 2}'])
def test_a_damaged_state_is_left_out_and_noted(run: Path, text: str) -> None:
    (run / "attempt-0" / "rank-1.hang.json").write_text(text)
    data = load_run(run)
    assert data.standing == [state(0)]
    assert [note.source for note in data.notes] == ["attempt-0/rank-1.hang.json"] * bool(text)


def test_a_state_of_another_rank_is_left_out(run: Path) -> None:
    folder = run / "attempt-0"
    replace(state(0)).write(folder)
    (folder / "rank-0.hang.json").rename(folder / "rank-1.hang.json")
    assert load_run(run).standing == []


def test_the_stack_of_an_aborted_rank(run: Path) -> None:
    (run / "attempt-0" / "rank-1.fatal").write_text(ABORTED)
    (run / "attempt-0" / "rank-0.fatal").write_text("")
    first, second = load_run(run).standing
    assert first == state(0)
    assert (second.status, second.thread.place, second.step) == ("aborted", "/home/me/train.py:99 metric", 4)
    assert (second.error, second.error_in_collective) == ("Fatal Python error: Aborted", True)


def test_only_the_latest_attempt_counts(run: Path) -> None:
    for name in ("rank-0.jsonl", "rank-0.steps"):
        (run / "attempt-1").mkdir(exist_ok=True)
        text = (run / "attempt-0" / name).read_text().replace('"attempt":0', '"attempt":1')
        (run / "attempt-1" / name).write_text(text)
    assert load_run(run).standing == []


def test_no_run_is_still_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError):
        load_run(tmp_path)


def test_steps_are_counted_by_the_files_of_the_ranks_where_they_left_nothing_but_a_stack(tmp_path: Path) -> None:
    for rank in (0, 1):
        write_rank(tmp_path, header(rank, 2), [step(number) for number in range(18 - rank)])
        (tmp_path / "attempt-0" / f"rank-{rank}.fatal").write_text(ABORTED)
    found = hang_of(load_run(tmp_path))
    assert found is not None
    assert found.step == 18
