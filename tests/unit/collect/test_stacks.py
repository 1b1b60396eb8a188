"""Which source line is named for time in `other`."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from ddlprof.collect.stacks import StackSampler, in_other
from ddlprof.model.events import Event, Kind


def event(kind: Kind, a: Any = None) -> Event:
    return (kind, 0, a, None, None)


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([], True),
        ([event(Kind.DATA_BEGIN)], False),
        ([event(Kind.DATA_BEGIN), event(Kind.DATA_END)], True),
        ([event(Kind.FORWARD_BEGIN, False), event(Kind.FORWARD_END)], True),
        ([event(Kind.FORWARD_BEGIN, True), event(Kind.FORWARD_END)], False),
        ([event(Kind.BACKWARD_BEGIN)], False),
        ([event(Kind.OPTIMIZER_BEGIN)], False),
        ([event(Kind.CHECKPOINT_BEGIN)], True),
        ([event(Kind.COMM_BEGIN)], False),
    ],
)
def test_in_other(events: list[Event], expected: bool) -> None:
    assert in_other(events) is expected


@pytest.fixture
def waiting_in_library() -> Iterator[tuple[int | None, FrameType]]:
    """A thread that waits in the standard library, called from this file."""
    release, begun = threading.Event(), threading.Event()

    def outer() -> None:
        begun.set()
        release.wait()

    thread = threading.Thread(target=outer)
    thread.start()
    begun.wait()
    frames: dict[int, FrameType] = sys._current_frames()
    yield thread.ident, frames[thread.ident or 0]
    release.set()
    thread.join()


def test_the_innermost_line_of_the_users(waiting_in_library: tuple[int | None, FrameType]) -> None:
    thread, _ = waiting_in_library
    sampler = StackSampler()
    for _ in range(3):
        sampler.sample(thread, [])
    sampler.sample(thread, [event(Kind.BACKWARD_BEGIN)])
    ((place, count),) = sampler.take().items()
    assert count == 3
    file, rest = place.rsplit(":", 1)
    assert file == str(Path(__file__).relative_to(Path.cwd()))
    assert rest.endswith(" outer")
    assert sampler.take() == {}


def test_library_code_is_named_only_where_nothing_else_is() -> None:
    places: list[str | None] = []

    def default(_: object) -> None:
        library = sys._getframe(1)
        places.append(StackSampler().place(library))

    json.dumps(object(), default=default, indent=1)
    assert places[0] is not None
    assert "test_stacks.py" in places[0]  # the line that called json
    thread = threading.Thread(target=json.dumps, args=(object(),), kwargs={"default": default, "indent": 1})
    thread.start()
    thread.join()
    assert places[1] is not None
    assert places[1].endswith(" _iterencode")


def test_a_thread_that_is_gone() -> None:
    sampler = StackSampler()
    sampler.sample(None, [])
    sampler.sample(-5, [])
    assert sampler.take() == {}


def test_only_the_most_frequent_lines_are_kept() -> None:
    sampler = StackSampler()
    sampler._counts = {f"line {n}": n for n in range(1, 41)}
    assert sampler.take() == {f"line {n}": n for n in range(40, 20, -1)}
