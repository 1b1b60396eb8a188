"""Why a job stands still, by what its ranks say: each reason, and what is none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddlprof.analysis import hang_facts as hangs
from ddlprof.analysis.hang_words import advice, headline, label
from ddlprof.analysis.hangs import find_hang
from ddlprof.model.hang import (
    COLLECTIVE,
    DATA,
    SCRIPT,
    ChildState,
    GroupState,
    Issued,
    RankState,
    ThreadState,
    last_words,
    note_killed,
)

ALLREDUCE, BROADCAST = "allreduce", "broadcast"
Form = tuple[str, int]
HABIT: list[Form] = [(ALLREDUCE, 12), (ALLREDUCE, 28), (ALLREDUCE, 4096)]


def group(forms: Sequence[Form], open_last: bool, name: str = "0", members: Sequence[int] = (0, 1, 2)) -> GroupState:
    count = len(forms)
    recent = [
        Issued(number, op, size, None, float(count - number), not (open_last and number == count - 1))
        for number, (op, size) in enumerate(forms)
    ]
    return GroupState(name, "data", list(members), recent)


def rank(number: int, forms: Sequence[Form], doing: str = COLLECTIVE, **fields: Any) -> RankState:
    groups = fields.pop("groups", [group(forms, doing == COLLECTIVE)])
    thread = fields.pop("thread", ThreadState("training", f"train.py:{10 + number} main", "all_reduce", []))
    state = RankState(
        rank=number, world_size=3, attempt=0, host="a", pid=1, unix_ns=10**18 + 60 * 10**9, first_unix_ns=10**18,
        answers_s=3.0, status="trains", stands=True, quiet_s=70.0, since_step_s=70.0, limit_s=60.0, step=40,
        doing=doing, thread=thread, groups=groups, cores=0.0, io_bytes_per_s=0.0,
    )  # fmt: skip
    return replace(state, **fields)


def found(*states: RankState, ended: Mapping[int, str] | None = None) -> hangs.Hang:
    result = find_hang(states, ended or {}, 3)
    assert result is not None
    return result


FULL, LESS = HABIT * 4, (HABIT * 4)[:-1]


def test_a_rank_that_is_elsewhere_is_named_with_its_line() -> None:
    result = found(rank(0, FULL), rank(1, LESS, SCRIPT), rank(2, FULL))
    assert (result.kind, result.ranks, result.waiting, result.place) == (hangs.MISSING, [1], [0, 2], "train.py:11 main")
    assert result.collective is not None
    assert (result.collective.seq, result.collective.op, result.collective.bytes) == (11, ALLREDUCE, 4096)
    assert result.is_hang


def test_nobody_says_that_it_stands() -> None:
    assert find_hang([rank(n, FULL, stands=False) for n in range(3)], {}, 3) is None
    assert find_hang([], {}, 3) is None
    assert find_hang([rank(n, FULL, resumed=True) for n in range(3)], {}, 3) is None


def test_ranks_go_on_one_after_another() -> None:
    stands, at_ns = rank(0, FULL), rank(0, FULL).unix_ns
    assert find_hang([stands, rank(1, LESS, resumed=True, unix_ns=at_ns - 10**9)], {}, 2) is None
    assert found(stands, rank(1, LESS, resumed=True, unix_ns=at_ns - 20 * 10**9)).kind == hangs.SILENT
    elsewhere = rank(0, FULL, groups=[group(FULL, True, members=(0, 2))])
    assert found(elsewhere, rank(2, LESS, SCRIPT), rank(1, LESS, resumed=True, unix_ns=at_ns - 10**9)).is_hang
    failed = rank(2, FULL, status="failed", error="ValueError: x", stands=False)
    assert found(stands, rank(1, LESS, resumed=True, unix_ns=at_ns - 10**9), failed).is_hang


@pytest.mark.parametrize(
    "fields", [{"stands": False}, {"cores": 0.9}, {"io_bytes_per_s": 5e7}, {"doing": "checkpoint"}], ids=str
)
def test_a_rank_at_work_is_no_hang(fields: dict[str, Any]) -> None:
    late = replace(rank(1, LESS, SCRIPT), **fields)
    result = found(rank(0, FULL), late, rank(2, FULL))
    assert (result.kind, result.ranks, result.is_hang) == (hangs.BUSY, [1], False)


def test_a_checkpoint_that_takes_ten_times_the_limit_is_one() -> None:
    assert found(rank(0, FULL), rank(1, LESS, "checkpoint", quiet_s=601.0), rank(2, FULL)).is_hang


def test_a_rank_that_left_a_collective_out() -> None:
    skipping = [*FULL[:9], HABIT[1]]
    result = found(rank(0, FULL[:10]), rank(1, skipping), rank(2, FULL[:10]))
    assert (result.kind, result.ranks) == (hangs.SKIPPED, [1])
    assert result.collective is not None
    assert (result.collective.seq, result.collective.bytes) == (9, 12)


def test_of_two_ranks_the_one_that_broke_its_habit() -> None:
    skipping = [*FULL[:9], HABIT[1]]
    result = found(rank(0, FULL[:10]), rank(1, skipping), rank(2, [], SCRIPT, groups=[]))
    assert (result.kind, result.ranks) == (hangs.SKIPPED, [1])


@pytest.mark.parametrize(
    ("form", "kind"), [((ALLREDUCE, 20), hangs.SHAPE), ((BROADCAST, 28), hangs.KIND)], ids=["shape", "kind"]
)
def test_a_rank_that_issued_something_else(form: Form, kind: str) -> None:
    result = found(rank(0, FULL[:11]), rank(1, [*FULL[:10], form]), rank(2, FULL[:11]))
    assert (result.kind, result.ranks) == (kind, [1])
    assert result.collective is not None
    assert (result.collective.seq, result.collective.bytes) == (10, 28)


def test_sizes_of_all_to_alls_may_differ() -> None:
    forms = [("alltoall_base", 10 + number) for number in range(3)]
    states = [rank(number, [*FULL, forms[number]]) for number in range(3)]
    assert found(*states).kind == hangs.NETWORK


def test_groups_in_another_order() -> None:
    def waits(number: int, first: str, second: str) -> RankState:
        groups = [group([(ALLREDUCE, 8)] * 3, True, first), group([(ALLREDUCE, 8)] * 2, False, second)]
        return rank(number, [], groups=groups)

    result = found(waits(0, "1", "2"), waits(1, "2", "1"), waits(2, "1", "2"))
    assert (result.kind, result.ranks, result.waiting) == (hangs.ORDER, [1], [0, 2])


def test_the_rank_at_the_end_of_a_chain() -> None:
    world = group(FULL, True)
    pair = group([(ALLREDUCE, 8)] * 3, True, "tp", (1, 2))
    before = group(LESS, False)
    result = found(
        rank(0, [], groups=[world]),
        rank(1, [], groups=[before, pair]),
        rank(2, [], SCRIPT, groups=[before, group([(ALLREDUCE, 8)] * 2, False, "tp", (1, 2))]),
    )
    assert (result.kind, result.ranks, result.waiting) == (hangs.MISSING, [2], [0, 1])
    assert result.collective is not None
    assert result.collective.group == "tp"


def test_ranks_that_are_no_more() -> None:
    others = [rank(0, FULL), rank(2, FULL)]
    assert found(*others, ended={1: "ok"}).kind == hangs.ENDED
    assert found(*others).kind == hangs.SILENT
    assert found(*[replace(each, peers={"1": "stopped"}) for each in others]).kind == hangs.STOPPED
    fresh = [replace(each, first_unix_ns=each.unix_ns) for each in others]
    assert find_hang(fresh, {}, 3) is None, "it may still answer"


def test_an_error_elsewhere_comes_before_lost_connections() -> None:
    lost: dict[str, Any] = {
        "status": "exception",
        "error": "RuntimeError: Connection closed by peer",
        "error_in_collective": True,
    }
    failed = rank(1, LESS, SCRIPT, status="exception", error="ValueError: loss is not finite")
    result = found(rank(0, FULL, **lost), failed, rank(2, FULL, **lost))
    assert (result.kind, result.ranks, result.detail) == (hangs.FAILED, [1], "ValueError: loss is not finite")
    full = replace(failed, error="OSError: [Errno 28] No space left on device")
    assert found(rank(0, FULL, **lost), full, rank(2, FULL, **lost)).kind == hangs.DISK


def test_reasons_of_a_rank_that_waits_for_something_else() -> None:
    def reason(**fields: Any) -> str:
        return found(rank(0, FULL), rank(1, LESS, fields.pop("doing", SCRIPT), **fields), rank(2, FULL)).kind

    dead = [ChildState(7, "python", "Z", "killed by SIGKILL")]
    assert reason(doing=DATA) == hangs.INPUT
    assert reason(doing=DATA, children=dead) == hangs.WORKER
    assert reason(full_disks=["/scratch"], stands=False) == hangs.DISK
    locked = ThreadState("training", "train.py:5 step", "acquire", [])
    logger = ThreadState("logger", "train.py:9 log", "acquire", [])
    assert reason(thread=locked, threads=[logger]) == hangs.LOCK
    assert reason(thread=locked) == hangs.MISSING


def test_a_rank_alone() -> None:
    state = replace(rank(0, [], SCRIPT, groups=[]), world_size=1)
    result = find_hang([state], {}, 1)
    assert result is not None
    assert (result.kind, result.is_hang) == (hangs.STANDS, True)
    asleep = replace(state, thread=replace(state.thread, calls="sleep"))
    result = find_hang([asleep], {}, 1)
    assert result is not None
    assert not result.is_hang


def test_a_damaged_number_of_ranks_costs_nothing() -> None:
    states = [rank(0, FULL), rank(1, LESS, SCRIPT), rank(2, FULL), rank(10**8, FULL)]
    result = find_hang(states, {}, 10**9)
    assert result is not None
    assert len(result.lines) < 10**6


def test_a_process_that_was_stopped_for_a_while_and_answers_again_is_not_stopped() -> None:
    others = [rank(number, FULL, peers={"1": "stopped"}) for number in (0, 2)]
    assert found(*others, rank(1, LESS, SCRIPT)).kind == hangs.MISSING
    before = 10**18 + 20 * 10**9
    assert found(*others, rank(1, LESS, SCRIPT, unix_ns=before)).kind == hangs.STOPPED


def test_a_rank_that_was_aborted_inside_a_collective_while_the_others_failed_elsewhere() -> None:
    """gloo aborts a process whose tensor is smaller than that of another; the others lose their connection to it."""
    words = (
        "Fatal Python error: Aborted\n\nThread 0x1 (most recent call first):\n"
        '  File "/v/site-packages/torch/distributed/distributed_c10d.py", line 3252 in all_reduce\n'
        '  File "/x/train.py", line 7 in log\n'
    )
    aborted = last_words(0, 3, 0, words)
    lost = rank(1, FULL, SCRIPT, stands=False, status="exception", error="RuntimeError: Connection reset by peer")
    result = found(aborted, lost, ended={1: "exception"})
    assert (result.kind, result.ranks, result.is_hang) == (hangs.FAILED, [0], False)
    assert result.place == "/x/train.py:7 log"
    assert "another size" in result.detail


def killed(directory: Path, number: int) -> RankState:
    """The state of a rank of whose end its launcher has left a word."""
    for attempt in (0, 2, 10):
        folder = directory / f"attempt-{attempt}"
        folder.mkdir(parents=True)
        (folder / f"rank-{number}.fatal").touch()
    note_killed(directory, number)
    texts = {each.parent.name: each.read_text() for each in directory.glob("*/*")}
    assert [name for name, text in texts.items() if text] == ["attempt-10"]
    return last_words(number, 3, 10, texts["attempt-10"])


def test_a_rank_that_was_killed_is_named_whatever_the_others_say(tmp_path: Path) -> None:
    gone = killed(tmp_path, 1)
    lost = rank(0, FULL, SCRIPT, stands=False, status="exception", error="RuntimeError: Connection reset by peer")
    for others in ([rank(0, FULL), rank(2, FULL)], [lost], []):
        result = found(*others, gone, ended={0: "exception"} if others == [lost] else None)
        assert (result.kind, result.ranks) == (hangs.KILLED, [1])
        assert "rank 1 was killed (SIGKILL)" in headline(result)
        assert "memory" in advice(result)
    assert label(found(lost, gone, ended={0: "exception"})) == "Failed"


def test_a_stack_in_the_last_words_is_kept(tmp_path: Path) -> None:
    (tmp_path / "attempt-0").mkdir()
    words = tmp_path / "attempt-0" / "rank-0.fatal"
    words.write_text("Fatal Python error: Aborted\n")
    note_killed(tmp_path, 0)
    note_killed(tmp_path, 7)  # a rank without a file
    assert words.read_text() == "Fatal Python error: Aborted\n"
    assert last_words(0, 1, 0, words.read_text()).status == "aborted"
