"""What a trace says of a collective: operation, group, ranks and bytes, where torch wrote them beside it."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from ddlprof.importing.names import plain_op

_LONGEST_GROUP = 200
_ELEMENT_BYTES = {
    "double": 8, "long": 8, "longint": 8, "complexfloat": 8, "complexdouble": 16, "float": 4, "int": 4, "half": 2,
    "bfloat16": 2, "short": 2, "shortint": 2, "byte": 1, "unsignedchar": 1, "char": 1, "signedchar": 1, "bool": 1,
}  # fmt: skip
_MOST_BYTES = 2**50
MESSAGES = ("send", "recv")


class Message(NamedTuple):
    """A collective as one rank knows it. `bytes`: on the side where a rank has all of it; None: not recorded."""

    op: str
    group: str
    ranks: int
    bytes: int | None


def message_of(args: dict[str, Any], op_of_kernel: str | None) -> Message | None:
    """What the arguments of a kernel or of `record_param_comms` say; None where they do not name the group."""
    name = args.get("Collective name")
    op = plain_op(name) if isinstance(name, str) else op_of_kernel
    if op in MESSAGES:  # which rank is at the other end is not written, so they cannot be matched
        return None
    group = args.get("Process Group Name", args.get("Process Group ID"))
    ranks = args.get("Group size")
    if op is None or not isinstance(group, (str, int)) or not isinstance(ranks, int) or not 0 < ranks < 2**30:
        return None
    counts = [args.get(key) for key in ("In msg nelems", "Out msg nelems")]
    known = [count for count in counts if isinstance(count, int) and count >= 0]
    element = element_bytes(args.get("dtype"))
    size = max(known) * element if known and element is not None else None
    return Message(op, _group(str(group), args), ranks, _bounded(size))


def _group(name: str, args: dict[str, Any]) -> str:
    """The group's name with its ranks: groups side by side may have one name, as each rank counts its own."""
    ranks = args.get("Process Group Ranks")
    text = f"{name} {''.join(ranks.split())}" if isinstance(ranks, str) else name
    return text[:_LONGEST_GROUP]


def sizes_of(args: dict[str, Any]) -> int | None:
    """The bytes of the inputs of an operator, recorded with `record_shapes`."""
    shapes, types = args.get("Input Dims"), args.get("Input type")
    if not isinstance(shapes, list) or not isinstance(types, list):
        return None
    total = 0
    for shape, kind in zip(shapes, types, strict=False):
        element = element_bytes(kind)
        if element is None or not isinstance(shape, list) or not all(isinstance(n, int) and n >= 0 for n in shape):
            return None
        total += math.prod(shape) * element
    return _bounded(total) if shapes else None


def element_bytes(kind: Any) -> int | None:
    """The bytes of one element of a type as torch or C++ calls it."""
    if not isinstance(kind, str):
        return None
    plain = kind.rpartition("::")[2].replace(" ", "").lower()
    return 1 if plain.startswith("float8") else _ELEMENT_BYTES.get(plain)


def _bounded(size: int | None) -> int | None:
    return size if size is not None and size < _MOST_BYTES else None
