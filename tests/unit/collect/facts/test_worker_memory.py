"""What children copy of the memory that they share with their parent, and what they take, by Linux's figures."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddlprof.collect.facts.worker_memory import WorkerMemory

MIB = 2**20


class Children:
    """A folder like /proc, and a clock of the processor by which each reading takes a millisecond."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now_ns = 0
        cpu_ns = itertools.count(0, 1_000_000)
        self.memory = WorkerMemory(lambda: self.now_ns, lambda: next(cpu_ns), str(folder))
        (folder / f"self/task/{os.getpid()}").mkdir(parents=True)

    def read(self, **children: tuple[int, int]) -> int | None:
        """A second later: the children `p1`, ... with their private and anonymous memory in MiB."""
        self.now_ns += 1_000_000_000
        numbers = [name[1:] for name in children]
        (self.folder / f"self/task/{os.getpid()}/children").write_text(" ".join(numbers))
        for number, (private, anonymous) in zip(numbers, children.values(), strict=True):
            (self.folder / number).mkdir(exist_ok=True)
            (self.folder / number / "smaps_rollup").write_text(
                f"Rss: {2 * anonymous << 10} kB\nPrivate_Clean:  9 kB\nPrivate_Dirty:  {private << 10} kB\n"
                f"Anonymous:      {anonymous << 10} kB\nLazyFree:  0 kB\n"
            )
        return self.memory.copied_bytes()


@pytest.fixture
def children(tmp_path: Path) -> Children:
    return Children(tmp_path)


def test_pages_that_are_no_longer_shared_were_copied(children: Children) -> None:
    assert children.read(p1=(10, 300), p2=(10, 300)) == 0
    assert children.read(p1=(60, 300), p2=(40, 300)) == 80 * MIB


def test_memory_of_their_own_is_no_copy(children: Children) -> None:
    children.read(p1=(10, 300), p2=(10, 300))
    assert children.memory.new_bytes() == 0
    assert children.read(p1=(110, 400), p2=(10, 300)) == 0
    assert children.memory.new_bytes() == 100 * MIB
    assert children.read(p1=(140, 420), p2=(40, 330)) == 10 * MIB
    assert children.memory.new_bytes() == 150 * MIB
    assert children.read(p1=(140, 420)) == 10 * MIB  # what the other one had is free
    assert children.memory.new_bytes() == 120 * MIB


def test_workers_that_start_anew_have_copied_and_taken_nothing_yet(children: Children) -> None:
    children.read(p1=(10, 300))
    children.read(p1=(60, 320))
    children.memory.new_bytes()
    assert children.read(p2=(10, 300)) == children.memory.new_bytes() == 0
    assert children.read() is children.memory.new_bytes() is None


def test_readings_that_take_long_are_rare(children: Children) -> None:
    children.read(p1=(10, 300))
    children.memory.new_bytes()
    children.now_ns -= 960_000_000
    assert children.read(p1=(60, 300)) is children.memory.new_bytes() is None  # 0.04 s is too soon
    assert children.read(p1=(60, 300)) == 50 * MIB
    for _ in range(16):
        children.read(p1=(60, 300))
    children.now_ns -= 900_000_000
    assert children.read(p1=(70, 300)) is None  # 0.1 s is too soon, and so are the next 0.9 s
    children.now_ns -= 200_000_000
    assert children.read(p1=(70, 300)) is None
    assert children.read(p1=(70, 300)) == 60 * MIB


def test_a_child_that_has_ended_or_may_not_be_read_is_left_out(children: Children) -> None:
    children.read(p1=(10, 300), p2=(10, 300))
    (children.folder / "2/smaps_rollup").unlink()
    (children.folder / "2").rmdir()
    (children.folder / "2").write_text("")
    children.now_ns += 1_000_000_000
    assert children.memory.copied_bytes() == 0


@pytest.fixture
def reader() -> Iterator[tuple[int, int]]:
    """A child that reads many objects of its parent when it is told to; the ends of the pipes to talk to it."""
    objects = [f"{n:0200d}" for n in range(100_000)]
    to_child, of_child = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        os.read(to_child[0], 1)
        for each in objects:
            each.__class__  # noqa: B018
        os.write(of_child[1], b"x")
        os.read(to_child[0], 1)
        os._exit(0)
    yield to_child[1], of_child[0]
    os.write(to_child[1], b"x")
    os.waitpid(child, 0)
    for descriptor in (*to_child, *of_child):
        os.close(descriptor)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells it")
def test_a_child_copies_a_list_by_reading_it(reader: tuple[int, int]) -> None:
    to_child, of_child = reader
    copied = WorkerMemory(itertools.count().__next__, lambda: 0)
    before = copied.copied_bytes()
    if before is None:
        pytest.skip("this system does not tell the children of a process or their memory")
    os.write(to_child, b"x")
    os.read(of_child, 1)
    after = copied.copied_bytes()
    assert after is not None
    assert after - before > 15 * MIB
