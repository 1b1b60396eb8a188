"""Why a job of 1,024 ranks on 128 machines stands still."""

from __future__ import annotations

import sys
from collections.abc import Collection

import pytest

from ddlprof.analysis import hang_facts as hangs
from ddlprof.analysis.hangs import find_hang
from ddlprof.model.hang import COLLECTIVE, SCRIPT, GroupState, Issued, RankState, ThreadState

WORLD, ON_EACH = 1024, 8
DEAD = (3, 99, 500, 700, 1023)


def state(rank: int, missing: Collection[int], dead: Collection[int] = (), world: int = WORLD) -> RankState:
    """A rank in tensor-parallel groups of its machine, data-parallel groups across, and a group of all."""
    own = rank // ON_EACH * ON_EACH

    def group(name: str, members: range, count: int, opened: bool) -> GroupState:
        recent = [
            Issued(each, "allreduce", 4096 + each % 5, None, float(count - each), not (opened and each == count - 1))
            for each in range(count - 3, count)
        ]
        return GroupState(name, "data", list(members), recent)

    groups = [
        group("0", range(world), 63 if rank in missing else 64, rank not in missing),
        group(f"tp{own}", range(own, own + ON_EACH), 90, False),
        group(f"dp{rank % ON_EACH}", range(rank % ON_EACH, world, ON_EACH), 90, False),
    ]
    return RankState(
        rank=rank, world_size=world, attempt=0, host=f"node{rank // ON_EACH}", pid=1 + rank,
        unix_ns=10**18 + 60 * 10**9, first_unix_ns=10**18, answers_s=7.0, status="trains", stands=True, quiet_s=70.0,
        since_step_s=70.0, limit_s=60.0, step=40, doing=SCRIPT if rank in missing else COLLECTIVE,
        thread=ThreadState("training", f"train.py:{10 + (rank in missing)} main", "", []), groups=groups, cores=0.0,
        io_bytes_per_s=0.0, peers={str(each): "gone" for each in dead if each // ON_EACH == rank // ON_EACH},
    )  # fmt: skip


@pytest.mark.parametrize("answer", [True, False])
def test_all_that_are_dead_or_missing_are_named(answer: bool) -> None:
    """`answer`: they wait elsewhere, instead of being dead."""
    missing = DEAD if answer else ()
    states = [state(rank, missing, () if answer else DEAD) for rank in range(WORLD) if answer or rank not in DEAD]
    found = find_hang(states, {}, WORLD)
    assert found is not None
    assert (found.kind, found.ranks) == (hangs.MISSING if answer else hangs.SILENT, list(DEAD))
    assert found.waiting == [rank for rank in range(WORLD) if rank not in DEAD]
    assert found.place == ("train.py:11 main" if answer else "")
    assert len(found.lines) == WORLD


def calls(states: list[RankState], world: int) -> int:
    """How many functions of Python are called to find the reason."""
    count = 0

    def called(_: object, event: str, __: object) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(called)
    try:
        find_hang(states, {}, world)
    finally:
        sys.setprofile(before)
    return count


def test_the_work_grows_with_the_ranks_and_not_with_their_square() -> None:
    few, many = ([state(rank, (7,), (), world) for rank in range(world)] for world in (128, 512))
    assert calls(many, 512) < 5 * calls(few, 128)
