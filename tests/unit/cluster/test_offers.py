"""Who gets which GPUs where jobs bid one after another."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ddlprof.cluster.jobs import Job, JobState
from ddlprof.cluster.machines import Allocation, Level, parse_cluster
from ddlprof.cluster.offers import Offers
from ddlprof.cluster.packing import FreeGpus

CLUSTER = parse_cluster("2x2x4")


def state(name: str, gpus: int, allocation: Allocation | None = None) -> JobState:
    return JobState(Job(name, 0, gpus, samples=1, batch=1, step_s=1.0), 0.0, allocation=allocation)


def holds(name: str, *parts: tuple[int, int]) -> JobState:
    allocation = Allocation(parts)
    return state(name, allocation.gpus, allocation)


def test_idle_gpus_before_those_of_others() -> None:
    new, other = state("new", 4), holds("other", (0, 4))
    offers = Offers(CLUSTER, [other], [new, other], 0.0)
    assert offers.bid(new, Level.NETWORK) == Allocation(((1, 4),))
    assert offers.bid(other, Level.MACHINE) == other.allocation


def test_the_last_bidder_on_a_machine_loses_all_that_it_has() -> None:
    new, early, late = state("new", 2), holds("early", (0, 2)), holds("late", (0, 2), (1, 2))
    fixed = holds("fixed", (1, 2), (2, 4), (3, 4))
    fixed.lease_end_s = 10.0
    offers = Offers(CLUSTER, [early, late, fixed], [new, early, late], 0.0)
    assert offers.bid(new, Level.MACHINE) is not None
    assert offers.bid(early, Level.MACHINE) is not None
    assert offers.bid(late, Level.NETWORK) is None


def test_a_job_moves_only_to_gpus_that_are_closer_together() -> None:
    spread, packed = holds("spread", (0, 2), (1, 2)), holds("packed", (2, 4))
    offers = Offers(CLUSTER, [spread, packed], [spread, packed], 0.0)
    assert offers.bid(spread, Level.NETWORK) == Allocation(((0, 4),))
    assert offers.bid(packed, Level.NETWORK) == packed.allocation


def test_what_is_too_far_apart_is_not_kept() -> None:
    spread = holds("spread", (0, 2), (1, 2))
    busy = [holds("x", (0, 2)), holds("y", (1, 2)), holds("z", (2, 4), (3, 4))]
    for each in busy:
        each.lease_end_s = 10.0
    assert Offers(CLUSTER, [spread, *busy], [spread], 0.0).bid(spread, Level.MACHINE) is None
    assert Offers(CLUSTER, [spread, *busy], [spread], 0.0).bid(spread, Level.RACK) == spread.allocation


@given(st.lists(st.tuples(st.integers(1, 12), st.sampled_from(Level), st.booleans(), st.booleans()), max_size=12))
def test_gpus_are_given_once_and_protected_ones_never(jobs: list[tuple[int, Level, bool, bool]]) -> None:
    free = FreeGpus(CLUSTER)
    bidders, running, levels = [], [], {}
    for number, (gpus, level, runs, is_protected) in enumerate(jobs):
        each = state(f"{number}", gpus, free.place(gpus) if runs else None)
        levels[each.job.job_id] = level
        if each.allocation is not None:
            free.take(each.allocation)
            running.append(each)
            each.lease_end_s = 10.0 if is_protected else 0.0
        if each.allocation is None or not is_protected:
            bidders.append(each)
    offers = Offers(CLUSTER, running, bidders, 0.0)
    left = [machine.gpus for machine in CLUSTER.machines]
    given = [each.allocation for each in running if each.lease_end_s]
    for each in bidders:
        wanted = offers.bid(each, levels[each.job.job_id])
        if wanted is not None:
            assert wanted.gpus == each.job.gpus
            assert offers.level(wanted) <= levels[each.job.job_id]
            assert offers.level(wanted) == CLUSTER.spread(wanted).level
        given.append(wanted)
    for allocation in given:
        for index, gpus in allocation.parts if allocation is not None else ():
            left[index] -= gpus
    assert min(left) >= 0
