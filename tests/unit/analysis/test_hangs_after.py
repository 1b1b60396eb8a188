"""Why a job stood still, by what is left of it when every rank has died of the others' timeout."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ddlprof.analysis import hang_facts as hangs
from ddlprof.analysis.hangs import find_hang
from ddlprof.model.hang import SCRIPT, RankState, ThreadState, last_words
from tests.unit.analysis.test_hangs import FULL, LESS, found, group, rank

NOW = 10**18 + 60 * 10**9
S = 10**9
DDP = "RuntimeError: [/x/gloo/tcp/unbound_buffer.cc:78] Timed out waiting 12000ms for recv operation to complete"
"""What `backward` raises under DDP: its collectives are C++'s, so torch.distributed is not on the stack."""
CLOSED = "RuntimeError: [/x/gloo/transport/tcp/pair.cc:538] Connection closed by peer [127.0.0.1]:22"


def timed_out(number: int, error: str = DDP, **fields: Any) -> RankState:
    return rank(number, FULL, SCRIPT, status="exception", error=error, **fields)


def ended_by_timeout(late: RankState, error: str = DDP) -> hangs.Hang:
    ended = {0: "exception", 2: "exception"}
    return found(timed_out(0, error), late, timed_out(2, error), ended=ended)


def test_a_rank_that_polls_is_missing_before_the_timeout_too() -> None:
    polls = ThreadState("training", "train.py:11 main", "sleep", [], "R")
    result = found(rank(0, FULL), rank(1, LESS, SCRIPT, thread=polls, cores=0.01), rank(2, FULL))
    assert (result.kind, result.is_hang) == (hangs.MISSING, True)
    assert not found(rank(0, FULL), rank(1, LESS, SCRIPT, thread=polls, cores=None), rank(2, FULL)).is_hang


def test_a_rank_at_work_for_longer_than_the_others_wait_was_too_late() -> None:
    result = ended_by_timeout(rank(1, LESS, SCRIPT, cores=1.0))
    assert (result.kind, result.ranks, result.is_hang) == (hangs.LATE, [1], True)
    asked = ended_by_timeout(rank(1, LESS, SCRIPT, stands=False, cores=None))
    assert (asked.kind, asked.is_hang) == (hangs.MISSING, True), "it answers, and does not compute"


def test_a_rank_that_comes_after_the_others_have_given_up() -> None:
    came = replace(group(FULL, True), recent=[replace(each, age_s=0.1) for each in group(FULL, True).recent])
    late = timed_out(1, CLOSED, unix_ns=NOW + 30 * S, groups=[came], stood_at="train.py:5 load")
    result = ended_by_timeout(late)
    assert (result.kind, result.ranks, result.waiting) == (hangs.LATE, [1], [0, 2])
    assert result.place == "train.py:5 load"
    assert result.detail == "31 s after the others"
    in_time = timed_out(1, CLOSED, unix_ns=NOW + 30 * S, groups=[group([*FULL], False)])
    in_time = replace(in_time, groups=[replace(came, recent=[replace(e, age_s=31.0) for e in came.recent])])
    assert ended_by_timeout(in_time).kind == hangs.NETWORK


def test_a_rank_that_was_stopped_and_then_killed_by_the_launcher() -> None:
    first = timed_out(0, peers={"1": "stopped"})
    last = timed_out(2, unix_ns=NOW + 20 * S, peers={"1": "gone", "0": "gone"})
    result = found(first, last, ended={0: "exception", 2: "exception"})
    assert (result.kind, result.ranks) == (hangs.STOPPED, [1])


@pytest.mark.parametrize("status", [None, "exit", "exception"])
def test_what_ends_after_the_others_gave_up_has_not_caused_it(status: str | None) -> None:
    """The launcher ends the rank that the others waited for, as soon as the first has failed."""
    first, last = timed_out(0), timed_out(2, unix_ns=NOW + 90 * S, peers={"1": "gone"})
    result = found(first, rank(1, LESS, SCRIPT), last, ended={} if status is None else {1: status})
    assert (result.kind, result.ranks) == (hangs.MISSING, [1])
    long_silent = rank(1, LESS, SCRIPT, unix_ns=NOW - 50 * S)
    assert found(first, long_silent, last).kind == hangs.SILENT


def test_torchs_watchdog_aborts_ranks_that_wait_on_the_device() -> None:
    """Their thread waits for the device anywhere, not in torch.distributed."""
    text = 'Fatal Python error: Aborted\n\nThread 0x1 (most recent call first):\n  File "/x/train.py", line 9 in step\n'
    words = [replace(last_words(number, 3, 0, text)) for number in (0, 2)]
    waits = [rank(number, FULL, SCRIPT, device="waits", groups=[group(FULL, True)]) for number in (0, 2)]
    aborted = [
        replace(state, status=word.status, error=word.error, thread=word.thread)
        for state, word in zip(waits, words, strict=True)
    ]
    result = found(*aborted, rank(1, LESS, SCRIPT))
    assert (result.kind, result.ranks, result.waiting, result.is_hang) == (hangs.MISSING, [1], [0, 2], True)


@pytest.mark.parametrize("status", ["interrupt", "exit"])
def test_a_job_that_was_ended_while_it_hung(status: str) -> None:
    """By Ctrl-C, or by a script that catches the timeout's error and ends with an exit code."""
    ended = {0: status, 2: status} | ({1: status} if status == "interrupt" else {})
    result = found(rank(0, FULL), rank(1, LESS, SCRIPT), rank(2, FULL), ended=ended)
    assert (result.kind, result.ranks, result.waiting) == (hangs.MISSING, [1], [0, 2])


def test_a_timeout_of_something_else_is_an_error_like_any_other() -> None:
    failed = rank(1, LESS, SCRIPT, status="exception", error="TimeoutError: HTTP request timed out")
    result = ended_by_timeout(failed)
    assert (result.kind, result.ranks) == (hangs.FAILED, [1])
    assert find_hang([failed], {1: "exception"}, 3) is None
