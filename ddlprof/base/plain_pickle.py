"""Reads pickles of plain values, such as torch writes them: dictionaries, lists, tuples, texts and numbers.

A pickle is a program. This runs the instructions that make plain values and no others, so it cannot call anything, and
it bounds what they may make: the module `pickle` would take all memory for a few bytes, or never end.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from ddlprof.base.errors import ReadingError
from ddlprof.base.reading import MAX_DEPTH, shown, too_deep, too_many

MOST_INSTRUCTIONS = 6_000_000
"""A dump of 20,000 collectives has about half as many. Each makes one object at most."""
MOST_VALUES = 20_000_000
"""The most values in all places together: a list that is in two places counts twice."""
_CONTAINERS = (dict, list, tuple)
MOST_NUMBER_BYTES = 9
"""64 bits without a sign take nine bytes."""


def parse_plain_pickle(
    content: bytes, most_instructions: int = MOST_INSTRUCTIONS, most_values: int = MOST_VALUES
) -> Any:
    """The value of a pickle of protocol 2 or later. Raises ReadingError for anything but plain values."""
    machine = _Machine(content)
    try:
        machine.run(most_instructions)
    except (IndexError, KeyError, struct.error):
        raise ReadingError(f"no whole pickle: damaged or cut off at byte {machine.at:,}") from None
    except UnicodeDecodeError:
        raise ReadingError(f"no whole pickle: no UTF-8 text at byte {machine.at:,}") from None
    if not machine.stack:
        raise ReadingError("no whole pickle: no value in it")
    _require_bounded(machine.stack[-1], most_values)
    return machine.stack[-1]


def _require_bounded(value: Any, most_values: int) -> None:
    """Raises ReadingError for nesting that is too deep, and for more values than `most_values`.

    Works level by level. What is in several places of a level is gone through once and counts in each of them.
    """
    level, number = {id(value): (value, 1)}, 1
    for _ in range(MAX_DEPTH + 1):
        below: dict[int, tuple[Any, int]] = {}
        for each, places in level.values():
            number += places * len(each) if isinstance(each, _CONTAINERS) else 0
            if number > most_values:
                raise too_many(most_values)
            for inner in each.values() if isinstance(each, dict) else each if isinstance(each, _CONTAINERS) else ():
                if isinstance(inner, _CONTAINERS):
                    below[id(inner)] = inner, below.get(id(inner), (None, 0))[1] + places
        if not below:
            return
        level = below
    raise too_deep()


class _Machine:
    """What a pickle's instructions work on: a stack of values, the stacks below the open marks, and the memo."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.at = 0
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []
        self.memo: dict[int, Any] = {}

    def run(self, most: int) -> None:
        content = self.content
        for _ in range(most):
            code = content[self.at]
            self.at += 1
            if code == _STOP:
                return
            found = _INSTRUCTIONS.get(code)
            if found is None:
                raise ReadingError(f"has pickle's instruction {bytes([code])!r}, and only plain values are read")
            size, is_counted, act = found
            argument = self.take(size) if size else b""
            act(self, self.take(_whole(argument)) if is_counted else argument)
        raise too_many(most)

    def take(self, size: int) -> bytes:
        """The next bytes of the content."""
        begin, self.at = self.at, self.at + size
        if self.at > len(self.content):
            raise IndexError
        return self.content[begin : self.at]

    def marked(self) -> list[Any]:
        """The values since the last mark, which goes."""
        found, self.stack = self.stack, self.below.pop()
        return found

    def extend(self, items: list[Any]) -> None:
        into = self.stack[-1]
        if not isinstance(into, list):
            raise IndexError
        into.extend(items)

    def update(self, items: list[Any]) -> None:
        into = self.stack[-1]
        if not isinstance(into, dict) or len(items) % 2:
            raise IndexError
        for name in items[::2]:
            if type(name) not in (str, int):  # the hash of nested tuples may take for ever
                raise ReadingError(f"{shown(name)} is the name of a field, and only texts and whole numbers are read")
        into.update(zip(items[::2], items[1::2], strict=True))

    def last(self, count: int) -> list[Any]:
        """The last values of the stack, which go."""
        if len(self.stack) < count:
            raise IndexError
        found = self.stack[-count:]
        del self.stack[-count:]
        return found

    def number(self, argument: bytes) -> None:
        if len(argument) > MOST_NUMBER_BYTES:
            raise ReadingError(f"a whole number of {len(argument):,} bytes; at most {MOST_NUMBER_BYTES} are read")
        self.stack.append(int.from_bytes(argument, "little", signed=True))

    def frame(self, argument: bytes) -> None:
        """A frame says how many bytes come; they are there already."""
        if _whole(argument) > len(self.content) - self.at:
            raise IndexError

    def memoize(self, number: int) -> None:
        self.memo[number] = self.stack[-1]

    def mark(self) -> None:
        self.below.append(self.stack)
        self.stack = []


def _whole(argument: bytes) -> int:
    return int.from_bytes(argument, "little")


_Act = Callable[[_Machine, bytes], Any]
_STOP = ord(".")
_NAMED: dict[bytes, tuple[int, bool, _Act]] = {
    # The bytes of the argument, whether they are the length of the argument, and what the instruction does.
    b"\x80": (1, False, lambda m, a: None),
    b"\x95": (8, False, _Machine.frame),
    b"(": (0, False, lambda m, a: m.mark()),
    b"N": (0, False, lambda m, a: m.stack.append(None)),
    b"\x88": (0, False, lambda m, a: m.stack.append(True)),
    b"\x89": (0, False, lambda m, a: m.stack.append(False)),
    b"K": (1, False, lambda m, a: m.stack.append(a[0])),
    b"M": (2, False, lambda m, a: m.stack.append(_whole(a))),
    b"J": (4, False, lambda m, a: m.number(a)),
    b"\x8a": (1, True, lambda m, a: m.number(a)),
    b"\x8b": (4, True, lambda m, a: m.number(a)),
    b"G": (8, False, lambda m, a: m.stack.append(struct.unpack(">d", a)[0])),
    b"\x8c": (1, True, lambda m, a: m.stack.append(a.decode())),
    b"X": (4, True, lambda m, a: m.stack.append(a.decode())),
    b"\x8d": (8, True, lambda m, a: m.stack.append(a.decode())),
    b"]": (0, False, lambda m, a: m.stack.append([])),
    b"}": (0, False, lambda m, a: m.stack.append({})),
    b")": (0, False, lambda m, a: m.stack.append(())),
    b"t": (0, False, lambda m, a: m.stack.append(tuple(m.marked()))),
    b"\x85": (0, False, lambda m, a: m.stack.append(tuple(m.last(1)))),
    b"\x86": (0, False, lambda m, a: m.stack.append(tuple(m.last(2)))),
    b"\x87": (0, False, lambda m, a: m.stack.append(tuple(m.last(3)))),
    b"a": (0, False, lambda m, a: m.extend(m.last(1))),
    b"e": (0, False, lambda m, a: m.extend(m.marked())),
    b"s": (0, False, lambda m, a: m.update(m.last(2))),
    b"u": (0, False, lambda m, a: m.update(m.marked())),
    b"q": (1, False, lambda m, a: m.memoize(a[0])),
    b"r": (4, False, lambda m, a: m.memoize(_whole(a))),
    b"\x94": (0, False, lambda m, a: m.memoize(len(m.memo))),
    b"h": (1, False, lambda m, a: m.stack.append(m.memo[a[0]])),
    b"j": (4, False, lambda m, a: m.stack.append(m.memo[_whole(a)])),
}
_INSTRUCTIONS = {name[0]: what for name, what in _NAMED.items()}
