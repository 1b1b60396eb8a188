from __future__ import annotations

import sys
import threading
from collections.abc import Callable

from ddlprof.base.alive import instances_of


class Kind:
    pass


class Special(Kind):
    pass


def test_instances_of_a_class_and_of_those_made_from_it() -> None:
    alive = [Kind(), Special(), Special()]
    assert sorted(map(id, instances_of(Kind))) == sorted(map(id, alive))
    assert sorted(map(id, instances_of(Special))) == sorted(map(id, alive[1:]))
    del alive
    assert instances_of(Kind) == []


def test_an_object_whose_class_lies_is_not_asked() -> None:
    class Proxy:
        @property  # type: ignore[misc]
        def __class__(self) -> type:
            raise AssertionError("the script's code runs")

    proxy = Proxy()
    assert instances_of(Kind) == []
    assert type(proxy) is Proxy


def test_other_threads_may_fill_tuples_meanwhile() -> None:
    """`tuple(iterator)` enlarges its tuple as it goes, which fails where anybody else holds the tuple."""
    alive, failures, stop = [Kind(), Kind()], list[BaseException](), threading.Event()
    others = [[number] for number in range(100_000)]

    def fill() -> None:
        try:
            while not stop.is_set():
                tuple([number] for number in range(2_000))
        except SystemError as error:
            failures.append(error)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    try:
        with_thread(fill, stop, lambda: [instances_of(Kind) for _ in range(40)])
    finally:
        sys.setswitchinterval(before)
    assert not failures
    assert len(alive) == 2
    assert len(others) == 100_000


def with_thread(work: Callable[[], None], stop: threading.Event, meanwhile: Callable[[], object]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    try:
        meanwhile()
    finally:
        stop.set()
        thread.join()
