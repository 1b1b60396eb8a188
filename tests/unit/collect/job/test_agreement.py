"""Ranks agree whatever lies in the store, whoever comes first, and nobody waits for ever."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from ddlprof.collect.job.agreement import Agreement, Follow, Lead

dist = pytest.importorskip("torch.distributed")

PROPOSAL = Agreement("/runs/a", "job", 0)
PATIENCE_S = 20.0
"""More than a run has: nobody is late here but those that shall be."""


def agree(
    store: Any, free_attempts: list[int], late_s: dict[int, float] | None = None, proposal: Agreement = PROPOSAL
) -> list[Agreement | None]:
    """One attempt of a job whose ranks other than 0 have files up to these attempts."""

    def rank(number: int) -> Agreement | None:
        time.sleep((late_s or {}).get(number, 0))
        if number == 0:
            return Lead(store, len(free_attempts) + 1, proposal).agree(PATIENCE_S)
        return Follow(store, number, free_attempts[number - 1]).agree(PATIENCE_S)

    with ThreadPoolExecutor(len(free_attempts) + 1) as pool:
        return list(pool.map(rank, range(len(free_attempts) + 1)))


def assert_agreed(agreements: list[Agreement | None]) -> Agreement:
    (one,) = set(agreements)
    assert one is not None
    return one


def test_an_attempt_that_broke_off_is_no_hindrance() -> None:
    store = dist.HashStore()
    Lead(store, 3, PROPOSAL).agree(0.1)  # then rank 0 was killed
    assert Follow(store, 1, 0).agree(0.1, 0.1) is None
    assert assert_agreed(agree(store, [0, 0], {0: 0.4})).complete


def test_nobody_waits_for_a_rank_without_ddlprof() -> None:
    store = dist.HashStore()
    assert Follow(store, 1, 0).agree(0.1, 0.1) is None
    with ThreadPoolExecutor(1) as pool:
        there = pool.submit(Follow(store, 2, 0).agree, PATIENCE_S)
        agreement = Lead(store, 4, PROPOSAL).agree(0.5)
        assert there.result() == agreement
    assert not agreement.complete
    with pytest.raises(RuntimeError, match="not every rank answered in time"):
        agreement.store(dist)


def test_a_rank_that_comes_late_is_told_later() -> None:
    store = dist.HashStore()
    lead = Lead(store, 3, PROPOSAL)
    agreement = lead.agree(0.1)
    assert lead.silent == 2
    late = Follow(store, 1, 0)
    assert late.poll() is None
    lead.poll()
    assert late.poll() == agreement
    assert lead.silent == 1


def test_rank_0_may_be_the_late_one() -> None:
    store = dist.HashStore()
    early = Follow(store, 1, 0)
    assert early.agree(0.1) is None
    assert early.poll() is None
    lead = Lead(store, 2, PROPOSAL)
    assert early.poll() is None  # has now answered the call
    assert lead.agree(0.1) == early.poll()


def test_over_a_real_network_store() -> None:
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    clients = [dist.TCPStore("127.0.0.1", server.port, wait_for_workers=False) for _ in range(2)]
    with ThreadPoolExecutor(3) as pool:
        for attempt in range(2):
            followers = [pool.submit(Follow(clients[rank - 1], rank, attempt).agree, PATIENCE_S) for rank in (1, 2)]
            leader = pool.submit(Lead(server, 3, PROPOSAL).agree, PATIENCE_S)
            agreement = assert_agreed([leader.result(), *(follower.result() for follower in followers)])
            assert (agreement.attempt, agreement.complete) == (attempt, True)
