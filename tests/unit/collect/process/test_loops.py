"""Loops are told by the jumps of the bytecode."""

from __future__ import annotations

import dis
from collections.abc import Callable, Iterable
from types import CodeType
from typing import Any

import pytest

from ddlprof.collect.process.loops import loop_around


def here(value: Any = None) -> Any:
    return value


def plain() -> None:
    here()


def inside(values: Iterable[int]) -> None:
    for value in values:
        here(value)


def behind(values: Iterable[int]) -> None:
    for _ in values:
        pass
    here()


def nested(rows: Iterable[Iterable[int]]) -> None:
    for row in rows:
        for value in row:
            if value:
                continue
            here(value)


def until(values: list[int]) -> None:
    while values:
        here(values.pop())


def micro_batches(batches: Iterable[Any], weights: list[Any]) -> None:
    for batch in batches:
        batch.backward()
        for weight in weights:
            here(weight)


def batches(values: Iterable[int]) -> Iterable[int]:
    for value in values:
        yield here(value)


def chained(layers: Iterable[Any], x: Any) -> Any:
    for layer in layers:
        x = here(layer)(x)
    return x


def heads(layers: Iterable[Any], x: Any) -> list[Any]:
    found = []
    for layer in layers:
        y = here(layer)(x)
        found.append(y)
    return found


def listed(layers: Iterable[Any], x: Any) -> list[Any]:
    return [one(x) + two for one, two in map(here, layers)]


def summed(layers: Iterable[Any], x: Any) -> Any:
    total = 0
    for layer in layers:
        total = total + here(layer)(x)
    return total


def kept(layers: Iterable[Any], x: Any) -> None:
    for layer in layers:
        x.state = here(layer)(x.state)


def dense(layers: Iterable[Any], x: list[Any]) -> list[Any]:
    for layer in layers:
        y = here(layer)(x)
        x.append(y)
    return x


def at(function: Callable[..., Any]) -> tuple[CodeType, int]:
    """The code of a function, and the instruction that reads the name `here`."""
    code = function.__code__
    return code, next(each.offset for each in dis.get_instructions(code) if each.argval == "here")


@pytest.mark.parametrize(("function", "line"), [(plain, None), (inside, 1), (behind, None), (nested, 1)])
def test_the_outermost_loop_is_told_by_its_first_line(function: Callable[..., Any], line: int | None) -> None:
    found = loop_around(*at(function))
    assert (found and found.line - function.__code__.co_firstlineno) == line


@pytest.mark.parametrize(
    ("function", "carries"),
    [(inside, False), (heads, False), (chained, True), (summed, True), (kept, True), (dense, True)],
)
def test_a_round_may_need_the_one_before(function: Callable[..., Any], carries: bool) -> None:
    found = loop_around(*at(function))
    assert found is not None
    assert found.carries is carries


def test_a_comprehension_hands_nothing_from_round_to_round() -> None:
    codes = [listed.__code__, *(each for each in listed.__code__.co_consts if isinstance(each, CodeType))]
    loops = [loop for code in codes for loop in [loop_around(code, last) for last in _adding(code)] if loop]
    assert [loop.carries for loop in loops] == [False]


def _adding(code: CodeType) -> list[int]:
    return [each.offset for each in dis.get_instructions(code) if each.opname == "LIST_APPEND"]


def test_a_loop_that_trains_can_be_left_out() -> None:
    first, inner = loop_around(*at(micro_batches)), loop_around(*at(micro_batches), training=False)
    assert first is not None
    assert inner is not None
    assert (first.trains, inner.trains) == (True, False)
    assert inner.line - micro_batches.__code__.co_firstlineno == 3


def test_a_generator_goes_on_from_step_to_step() -> None:
    assert loop_around(*at(batches)) is not None
    assert loop_around(*at(batches), training=False) is None


def test_a_loop_of_while_is_one() -> None:
    found = loop_around(*at(until))
    assert found is not None
    assert 1 <= found.line - until.__code__.co_firstlineno <= 2


def test_a_loop_around_the_update_does_not_count() -> None:
    code, instruction = at(nested)
    outer = loop_around(code, instruction)
    assert outer is not None
    assert loop_around(code, instruction, instruction) is None
    inner = loop_around(code, instruction, outer.first)
    assert inner is not None
    assert inner.line == outer.line + 1
