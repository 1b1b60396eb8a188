"""Values that nobody expects, and ways to put them, or other damage, into a value or a file."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

HOSTILE: tuple[Any, ...] = (
    None, True, False, "", "x", "\ud800", "\x1b]0;x\x07", "=1+1", "1", "a" * 100_000, [], {}, [[]], [None], {"a": 1},
    -1, 0, -0.0, 0.5, 1.5, 1e-300, 1e-12, 1e-9, 1e9, 1e18, 1e24, 1e300, 2**31, 2**63, 10**30, 10**400,
    float("nan"), float("inf"), -float("inf"), [1] * 10_000, [0], [-1], [10**400], ["x"], [1, [2]], "T44", "p99",
)  # fmt: skip
JUNK = (b"\0", b"\xff", b"\xef\xbb\xbf", b"\xed\xa0\x80", b'"', b"[" * 50_000, b"{", b",", b"\n" * 200_000, b"9" * 5000,
        b"1e999", b"NaN", b"-Infinity", b"\\ud800", b"\\", b"\r", b"\x1b[2J")  # fmt: skip


def damaged(content: bytes, chance: random.Random) -> bytes:
    """The content with one piece missing, twice there, moved, or replaced by something else."""
    at, length = chance.randrange(len(content)), chance.choice((1, 1, 8, 64, 512))
    flipped = bytes([content[at] ^ (1 << chance.randrange(8))])
    return chance.choice(
        (
            content[:at],
            content[at:],
            content[:at] + flipped + content[at + 1 :],
            content[:at] + content[at + length :],
            content[: at + length] + content[at:],
            content[:at] + chance.choice(JUNK) + content[at:],
            content[:at] + chance.randbytes(length) + content[at:],
            content * 2,
        )
    )


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of the value and all in it, one of each kind of item at least."""
    yield path
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from paths(inner, (*path, name))
    elif isinstance(value, list):
        for index, inner in enumerate(value[:4]):
            yield from paths(inner, (*path, index))


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """A copy of the value with another one at the path."""
    if not path:
        return new
    if isinstance(value, dict):
        return {**value, path[0]: replaced(value[path[0]], path[1:], new)}
    return [replaced(inner, path[1:], new) if i == path[0] else inner for i, inner in enumerate(value)]
