"""The stack samples of workers, and how they reach the training process."""

from __future__ import annotations

import gc

import pytest

from ddlprof.collect.loader.worker import Ring
from ddlprof.collect.process.worker_lines import WorkerLines, WorkerLooks, packed, unpacked
from ddlprof.model.source_locations import SourceLocation

OPEN, LIST = SourceLocation("data.py:7 read", "data opens"), SourceLocation("data.py:9 join", "data lists")


class Owner:
    pass


def test_what_is_packed_is_unpacked() -> None:
    assert unpacked(packed({OPEN: 3, LIST: 1}, 8192)) == {OPEN: 3, LIST: 1}
    assert unpacked(packed({}, 8192)) == {}


def test_the_most_frequent_ones_are_kept_where_there_is_no_room() -> None:
    many = {SourceLocation("x" * 150 + str(number), "data"): number + 1 for number in range(20)}
    data = packed(many, 1000)
    assert len(data) <= 1000
    found = unpacked(data)
    assert found
    assert min(found.values()) > 20 - len(found)


@pytest.mark.parametrize("damage", [b"", b"\0" * 8192, b"\xff" * 64])
def test_what_is_not_whole_is_nothing(damage: bytes) -> None:
    assert unpacked(damage) == {}
    whole = packed({OPEN: 3}, 8192)
    assert unpacked(whole[:-1]) == {}
    assert unpacked(whole[:12] + b"?" + whole[13:]) == {}


def test_each_sample_is_taken_once_and_those_of_workers_that_are_gone_too() -> None:
    ring, owner, lines = Ring.create(2), Owner(), WorkerLines()
    lines.add(owner, Ring(ring.path), 2)
    assert lines.take() == {}
    ring.put_lines(0, {OPEN: 2})
    ring.put_lines(1, {OPEN: 1, LIST: 4})
    assert lines.take() == {OPEN: 3, LIST: 4}
    assert lines.take() == {}
    ring.put_lines(1, {OPEN: 1, LIST: 9})
    ring.remove()
    del owner
    gc.collect()
    assert lines.take() == {LIST: 5}
    assert not lines._watched


def test_samples_leave_the_fetches_alone() -> None:
    ring = Ring.create(2)
    ring.put_begin(0, 77)
    ring.put_begin(1, 88)
    ring.put_lines(0, {OPEN: 2})
    assert (ring.get_begin(0), ring.get_begin(1), ring.get(1, 0, 0)) == (77, 88, None)
    assert ring.get_lines(1) == {}
    ring.remove()


@pytest.mark.parametrize(("in_main", "asked"), [(True, [(80_000, True)]), (False, [])])
def test_the_thread_that_fetches_is_asked_for_the_lock(
    monkeypatch: pytest.MonkeyPatch, in_main: bool, asked: list[tuple[int, bool]]
) -> None:
    """Only the main thread of a process can be asked."""
    naps, slept = list[tuple[int, bool]](), list[float]()
    looks = WorkerLooks(lambda counts: None, lambda us, look: naps.append((us, look)))
    looks.fetching = True
    monkeypatch.setattr("ddlprof.collect.process.worker_lines.time.sleep", slept.append)
    if not in_main:
        monkeypatch.setattr(looks, "_thread", -1)
    looks._pause(0.08)
    assert naps == asked
    assert slept == ([] if in_main else [0.08])
