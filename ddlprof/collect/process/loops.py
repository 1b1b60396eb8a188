"""Finds the loops of a function around one of its instructions, in its bytecode, which is there without sources."""

from __future__ import annotations

import dis
import re
from collections import Counter
from functools import lru_cache
from types import CodeType
from typing import NamedTuple

_CACHED = 1000
_USES = re.compile(r"(LOAD|STORE)_(?:FAST|DEREF|NAME|GLOBAL)(?!_AND_CLEAR)")
_IN_PLACE = re.compile(r"[^_]_$")
"""The end of the names of torch's methods that change a tensor."""
_FILLING = ("append", "extend", "insert", "update", "add", "setdefault")
"""Methods that keep something in an object."""
_TRAINS = re.compile(r"backward|(^|_)step$")


class Loop(NamedTuple):
    """The instructions that a jump backwards repeats."""

    first: int
    last: int
    line: int
    """The line of its first instruction: that of `for`; of `while` that of its condition or its body."""
    carries: bool
    """Whether a round leaves something for the next: in a variable that is read before it is set, or in an object."""
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


@lru_cache(_CACHED)
def keeps(code: CodeType) -> bool:
    """Whether a function keeps something in an object, or changes a tensor, as a module with a state does."""
    return any(map(_stores, dis.get_instructions(code)))


@lru_cache(_CACHED)
def _loops(code: CodeType) -> tuple[Loop, ...]:
    """The loops of a function, outer ones first."""
    ends: dict[int, int] = {}
    trained: list[int] = []
    instructions = list(dis.get_instructions(code))
    for each in instructions:
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
            _carries([each for each in instructions if first <= each.offset <= last]),
            any(first <= each <= last for each in trained),
        )
        for first, last in sorted(ends.items(), key=lambda loop: loop[0] - loop[1])
    )


def _stores(each: dis.Instruction) -> bool:
    in_place = each.opname in ("LOAD_METHOD", "LOAD_ATTR") and _IN_PLACE.search(each.argval)
    return bool(in_place) or each.opname in ("STORE_ATTR", "STORE_SUBSCR")


def _carries(body: list[dis.Instruction]) -> bool:
    first: dict[str, str] = {}
    stored, loaded, filled = set[str](), Counter[str](), Counter[str]()
    for each, after in zip(body, [*body[1:], None], strict=True):
        if _stores(each):
            return True
        names = each.argval if isinstance(each.argval, tuple) else (each.argval,)  # of two in one from Python 3.13 on
        for kind, name in zip(_USES.findall(each.opname), names, strict=False):
            first.setdefault(name, kind)
            stored.update((name,) if kind == "STORE" else ())
            loaded[name] += kind == "LOAD"
            filled[name] += name == names[-1] and after is not None and after.argval in _FILLING
    read = any(0 < filled[name] < loaded[name] for name in loaded)
    return read or any(first[name] == "LOAD" for name in stored)
