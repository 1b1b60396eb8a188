"""Finds the loops of a function around one of its instructions, in its bytecode, which is there without sources."""

from __future__ import annotations

import dis
import re
from types import CodeType
from typing import NamedTuple

_CACHED = 1000
_TRAINS = re.compile(r"backward|(^|_)step$")
_found: dict[CodeType, tuple[Loop, ...]] = {}


class Loop(NamedTuple):
    """The instructions that a jump backwards repeats."""

    first: int
    last: int
    line: int
    """The line of its first instruction: that of `for`; of `while` that of its condition or its body."""
    trains: bool
    """Whether it names a backward or a step, as a loop over micro-batches does, or a generator goes on in it from step
    to step."""


def loop_around(code: CodeType, instruction: int, but: int | None = None, training: bool = True) -> Loop | None:
    """The outermost loop around an instruction, of those that are not around the instruction `but` as well; `training`:
    also one that trains."""
    return next(
        (
            loop
            for loop in _loops(code)
            if loop.first <= instruction <= loop.last
            and not (but is not None and loop.first <= but <= loop.last)
            and (training or not loop.trains)
        ),
        None,
    )


def iterates(code: CodeType, instruction: int) -> bool:
    """Whether an instruction asks for the next item of a loop, such as of a generator."""
    return dis.opname[code.co_code[instruction]] == "FOR_ITER"


def _loops(code: CodeType) -> tuple[Loop, ...]:
    """The loops of a function, outer ones first."""
    if code not in _found:
        if len(_found) >= _CACHED:
            _found.clear()
        _found[code] = _read(code)
    return _found[code]


def _read(code: CodeType) -> tuple[Loop, ...]:
    ends: dict[int, int] = {}
    trained: list[int] = []
    for each in dis.get_instructions(code):
        jumps = "JUMP" in each.opname and "NO_INTERRUPT" not in each.opname  # not the loop of an await
        if jumps and isinstance(each.argval, int) and each.argval <= each.offset:
            ends[each.argval] = max(each.offset, ends.get(each.argval, 0))
        yields = each.opname == "YIELD_VALUE" and code.co_name != "<genexpr>"
        if yields or (isinstance(each.argval, str) and _TRAINS.search(each.argval)):
            trained.append(each.offset)
    lines = [(begin, line) for begin, _, line in code.co_lines() if line is not None]
    return tuple(
        Loop(
            first,
            last,
            next((line for begin, line in reversed(lines) if begin <= first), code.co_firstlineno),
            any(first <= each <= last for each in trained),
        )
        for first, last in sorted(ends.items(), key=lambda loop: loop[0] - loop[1])
    )
