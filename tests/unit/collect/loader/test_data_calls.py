"""What a wrapped function still is, and which of its calls are waits: with a recorder that only remembers."""

from __future__ import annotations

import asyncio
import functools
import importlib
import inspect
import itertools
import pickle
import sys
import threading
import types
from collections.abc import Iterator
from typing import Any, cast

import pytest

import ddlprof
from ddlprof.collect.loader import data_calls, waits
from ddlprof.collect.loader.data_calls import DataCalls, data_call, marked
from ddlprof.collect.loader.waits import Waits
from ddlprof.collect.recorder import Recorder
from ddlprof.model.events import Kind

BEGIN, END, EPOCH = Kind.DATA_BEGIN, Kind.DATA_END, Kind.EPOCH


class Calls(DataCalls):
    def __init__(self, *wanted: str) -> None:
        self.recorder = Recorder()
        super().__init__(Waits(self.recorder), wanted)

    def events(self) -> list[tuple[Any, ...]]:
        """(kind, id) of each, and the samples where a wait ends."""
        taken = self.recorder.take_rest()
        return [(kind, a, c) if kind == END else (kind, a) for kind, _, a, _, c in taken]


@pytest.fixture
def calls() -> Iterator[Calls]:
    made = Calls()
    made.watch()
    yield made
    made.close()


def get_batch(size: int, *, extra: int = 0) -> list[int]:
    """Makes a batch."""
    return [0] * (size + extra)


def generate(count: int) -> Iterator[list[int]]:
    for number in range(count):
        yield [number] * 4


class Batches:
    made = 0

    def __init__(self) -> None:
        self.left = 2

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> list[int]:
        if not self.left:
            raise StopIteration
        self.left -= 1
        return [0] * 4

    def next(self) -> list[int]:
        return [0] * 4

    @classmethod
    def count(cls) -> list[type]:
        cls.made += 1
        return [cls]

    @staticmethod
    def plain() -> list[int]:
        return [1, 2]


def wait(ident: int, samples: int | None = 4) -> list[tuple[Any, ...]]:
    return [(BEGIN, ident), (END, ident, samples)]


def test_the_function_keeps_its_looks(calls: Calls) -> None:
    wrapped = calls.wrap(get_batch, "m:get_batch")
    for name in ("__name__", "__qualname__", "__module__", "__doc__"):
        assert getattr(wrapped, name) == getattr(get_batch, name)
    assert inspect.signature(wrapped) == inspect.signature(get_batch)
    assert inspect.getsource(wrapped) == inspect.getsource(get_batch)


def test_pickled_by_name(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    wrapped = calls.wrap(get_batch, "m:get_batch")
    monkeypatch.setattr(sys.modules[__name__], "get_batch", wrapped)
    assert pickle.loads(pickle.dumps(wrapped)) is wrapped


def test_each_object_is_a_loader_of_its_own(calls: Calls) -> None:
    undo = calls.patch(sys.modules[__name__], "Batches.next", "m:Batches.next")
    one, other = Batches(), Batches()
    for batches in (one, other, one):
        assert batches.next() == [0] * 4
    undo()
    one.next()
    first, second = (event[1] for event in calls.events()[1:4:2])
    assert first != second


def test_kinds_of_methods(calls: Calls) -> None:
    module = sys.modules[__name__]
    undo = [calls.patch(module, f"Batches.{name}", name) for name in ("count", "plain", "__next__")]
    assert Batches.count() == [Batches]
    assert Batches.plain() == [1, 2]
    assert list(Batches()) == [[0] * 4] * 2
    assert len(calls.events()) == 2 * (1 + 1 + 3)
    for each in undo:
        each()
    assert isinstance(vars(Batches)["plain"], staticmethod)
    assert (Batches.count(), Batches.plain(), list(Batches())) == ([Batches], [1, 2], [[0] * 4] * 2)
    assert calls.events() == []


def test_an_inherited_method(calls: Calls) -> None:
    class Child(Batches):
        pass

    module = types.SimpleNamespace(Child=Child)
    undo = calls.patch(module, "Child.next", "m:Child.next")
    Child().next()
    Batches().next()
    assert len(calls.events()) == 2
    undo()
    assert "next" not in vars(Child)


@pytest.mark.parametrize(
    "make",
    [generate, lambda count: generate(count), lambda count: map(list, itertools.repeat([0] * 4, count))],
    ids=["generator function", "returns a generator", "returns a map"],
)
def test_each_next_is_a_wait(make: Any, calls: Calls) -> None:
    iterator = calls.wrap(make, "m:make")(2)
    assert calls.events() == [(BEGIN, 0), (EPOCH, 0), (END, 0, 0)]
    assert [len(batch) for batch in iterator] == [4, 4]
    assert calls.events() == wait(0) + wait(0) + wait(0, 0)


def test_an_iterator_of_a_class_stays_the_object(calls: Calls) -> None:
    batches = Batches()
    assert calls.wrap(lambda: batches, "m:make")() is batches
    calls.events()
    next(batches)
    assert calls.events() == wait(0)
    next(Batches())
    assert calls.events() == []
    calls.close()
    assert "_ddlprof" not in str(vars(vars(Batches)["__next__"]))


def test_a_generator_is_as_before(calls: Calls) -> None:
    heard: list[Any] = []

    def talk() -> Any:
        try:
            try:
                heard.append((yield 1))
            except KeyError:
                heard.append("key")
            yield 2
            return 3
        finally:
            heard.append("closed")

    generator: Any = calls.wrap(talk, "m:talk")()
    assert inspect.isgenerator(cast("object", generator))
    assert next(generator) == 1
    assert generator.throw(KeyError()) == 2
    with pytest.raises(StopIteration) as stop:
        generator.send("x")
    assert stop.value.value == 3
    generator = calls.wrap(talk, "m:talk")()
    next(generator)
    generator.send("x")
    generator.close()
    assert heard == ["key", "closed", "x", "closed"]


def test_the_outermost_counts(calls: Calls) -> None:
    inner = calls.wrap(get_batch, "m:inner")
    outer = calls.wrap(lambda: inner(2) + inner(2), "m:outer")
    assert outer() == [0] * 4
    assert calls.events() == wait(2)


def test_errors_are_the_functions_own(calls: Calls) -> None:
    def broken() -> None:
        raise KeyError("x")

    wrapped = calls.wrap(broken, "m:broken")
    for _ in range(2):
        with pytest.raises(KeyError, match="x"):
            wrapped()
    assert calls.events() == wait(0, 0) * 2


def test_what_is_not_timed(calls: Calls) -> None:
    wrapped = calls.wrap(get_batch, "m:get_batch")
    thread = threading.Thread(target=wrapped, args=(4,))
    thread.start()
    thread.join()
    calls.waits.is_compiling = lambda: True
    wrapped(4)
    calls.waits.is_compiling = lambda: False
    calls.recorder.active = False
    wrapped(4)
    assert calls.events() == []


def test_a_pass_over_the_data_is_no_wait_for_a_batch(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits, "_MOST_IN_A_STEP", 3)
    wrapped = calls.wrap(get_batch, "m:get_batch")
    for _ in range(5):
        wrapped(4)
    assert calls.events() == wait(0) * 3
    calls.recorder.boundaries += 1
    wrapped(4)
    assert calls.events() == wait(0)


def test_a_librarys_own_use_is_no_wait(calls: Calls) -> None:
    wrapped = calls.wrap(get_batch, "m:get_batch", library="tests")
    wrapped(4)
    assert calls.events() == []


async def asynchronous() -> None:
    """Cannot be wrapped."""


@pytest.mark.parametrize("unfit", [Batches, 3, asynchronous, property(get_batch)])
def test_what_cannot_be_wrapped_stays(unfit: Any, calls: Calls) -> None:
    with pytest.raises(TypeError):
        calls.wrap(unfit, "m:unfit")
    assert data_call(unfit) is unfit
    assert marked("m:unfit")(unfit) is unfit


def test_partial_functions_and_builtins(calls: Calls) -> None:
    assert calls.wrap(functools.partial(get_batch, 4), "m:partial")() == [0] * 4
    assert calls.wrap(sorted, "m:sorted")([2, 1]) == [1, 2]
    assert [event[0] for event in calls.events()] == [BEGIN, END] * 2


def test_the_decorator(calls: Calls) -> None:
    assert ddlprof.data_call is data_call
    assert data_call(get_batch)(4) == [0] * 4
    assert calls.events() == wait(0)
    calls.close()
    assert data_call(get_batch) is get_batch
    assert marked("m:get_batch")(get_batch) is get_batch
    assert asyncio.iscoroutinefunction(data_call(asynchronous))


@pytest.fixture
def module(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "made_up").mkdir()
    (tmp_path / "made_up" / "__init__.py").touch()
    (tmp_path / "made_up" / "data.py").write_text(
        "value = 1\ndef get_batch():\n    return [0] * 4\nclass Batches:\n    def next(self):\n        return [0] * 4\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in ("made_up", "made_up.data"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("module")
def test_functions_of_a_module_are_wrapped_when_it_is_imported() -> None:
    calls = Calls("made_up.data:get_batch", "made_up.data:Batches.next", "__main__:get_batch")
    before = list(sys.meta_path)
    calls.watch()
    from made_up.data import Batches as Theirs  # type: ignore[import-not-found]
    from made_up.data import get_batch as theirs

    theirs()
    Theirs().next()
    assert len(calls.events()) == 4
    calls.close()
    theirs()
    assert sys.meta_path == before
    assert "wrapped" not in str(vars(sys.modules["made_up.data"])["get_batch"].__dict__)


@pytest.mark.usefixtures("module")
def test_complaints() -> None:
    calls = Calls("made_up.data:get_batch", "made_up.data:gone", "made_up.data:value", "made_up.data:Batches", "no:f")
    calls.watch()
    theirs = importlib.import_module("made_up.data")
    calls.close()
    hint = "; functions of the script itself are __main__:NAME"
    assert calls.complaints() == [
        f"--data-call made_up.data:get_batch was never called{hint}",
        f"--data-call made_up.data:gone was never called (the module has no such function){hint}",
        f"--data-call made_up.data:value was never called (it is no function){hint}",
        f"--data-call made_up.data:Batches was never called (a class: name a method of it){hint}",
        f"--data-call no:f was never called{hint}",
    ]
    assert theirs.get_batch() == [0] * 4


def test_there_is_one_current_session() -> None:
    assert data_calls._current is None
