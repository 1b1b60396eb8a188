"""The figures that workers leave for the training process."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from ddlprof.collect.loader.fetch_meter import Fetch
from ddlprof.collect.loader.worker import Ring, WorkerInit, of_worker

ONE = Fetch(10, 20, 5, 4, 300, 200)


@pytest.fixture
def ring() -> Ring:
    return Ring.create(3)


def test_what_one_process_puts_another_gets(ring: Ring) -> None:
    other = Ring(ring.path)
    other.put(2, 0, 0, ONE)
    other.put(0, 0, 0, ONE._replace(begin=11, asked=None, storage=None))
    assert ring.get(2, 0, 0) == ONE
    assert ring.get(0, 0, 0) == (11, 20, 5, 4, None, None)
    assert ring.get(1, 0, 0) is None
    assert ring.get(2, 0, 1) is None
    ring.remove()
    assert not Path(ring.path).exists()


def test_old_slots_are_used_again_and_never_taken_for_new_ones(ring: Ring) -> None:
    for number in range(3000):
        ring.put(1, 0, number, ONE._replace(begin=number))
    assert ring.get(1, 0, 2999) == ONE._replace(begin=2999)
    with pytest.raises(LookupError):
        ring.get(1, 0, 0)
    assert ring.get(1, 1, 2999) is None  # persistent workers count anew in each epoch
    ring.remove()


def test_an_epoch_takes_no_slot_of_the_one_before(ring: Ring) -> None:
    """Persistent workers have fetched for the next epoch before all of this one were read."""
    slot = 0
    for generation in range(40):
        for number in range(10):
            ring.put(1, generation, number, ONE._replace(begin=slot), slot)
            slot += 1
    found = [ring.get(1, generation, number) for generation in range(40) for number in range(10)]
    assert found == [ONE._replace(begin=each) for each in range(slot)]
    assert ring.get(1, 40, 0) is None
    for number in range(2000):
        ring.put(1, 40, number, ONE, slot + number)
    with pytest.raises(LookupError):
        ring.get(1, 39, 9)


def test_begin_of_the_fetch_under_way(ring: Ring) -> None:
    assert ring.get_begin(1) == 0
    ring.put_begin(1, 77)
    assert (ring.get_begin(0), ring.get_begin(1), ring.get_begin(2)) == (0, 77, 0)
    ring.put(1, 0, 0, ONE)
    assert ring.get_begin(1) == 0
    ring.remove()


@pytest.mark.parametrize(
    ("next_fetch", "under_way", "preparing"),
    [
        (None, 0, 0.1),  # the rest is handing over
        (Fetch(120, 130, 0, 10, 0, 0), 0, 0.2),  # the worker was busy with the next one for as long only
        (Fetch(120, 900, 0, 10, 0, 0), 0, 0.9),
        (Fetch(300, 310, 0, 10, 0, 0), 0, 0.1),  # begun when the batch had come
        (None, 150, 0.6),
    ],
)
def test_a_worker_prepares_no_longer_than_its_next_fetch_takes(
    ring: Ring, next_fetch: Fetch | None, under_way: int, preparing: float
) -> None:
    ring.put(1, 0, 0, Fetch(100, 110, 0, 10, 0, 0))
    if next_fetch is not None:
        ring.put(1, 0, 1, next_fetch)
    ring.put_begin(1, under_way)
    delivery = of_worker(ring, 1, 0, 0, begin=100, end=200)
    assert delivery is not None
    assert delivery[:2] == pytest.approx((0, preparing))


def test_remove_twice(ring: Ring) -> None:
    ring.remove()
    ring.remove()


def user_init(worker: int) -> None:
    called.append(worker)


called: list[int] = []


def test_the_users_function_is_called_even_if_ours_fails() -> None:
    init = pickle.loads(pickle.dumps(WorkerInit(user_init, "/nowhere/at/all")))
    init.user = user_init
    called.clear()
    init(1)
    assert called == [1]
