"""Who issues the collectives of a step: DDP, FSDP, an optimizer, or a line of the script.

The place of an issuer is a `SourceLocation` whose `what` is one of the words below. Its text is the line of the script,
or the function of an installed package; empty for what torch issues by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from ddlprof.model.annotations import Shared

REDUCER = "reducer"
"""DDP's reducer, with the hooks that torch has for it: gradients."""
BUFFERS = "buffers"
"""DDP's broadcast of buffers in front of a forward."""
FSDP = "fsdp"
"""FullyShardedDataParallel."""
FSDP2 = "fsdp2"
"""fully_shard."""
SHARDED_OPTIMIZER = "sharded optimizer"
SYNC_NORM = "synchronised normalisation"
TENSOR = "distributed tensor"
SCRIPT = "script"
"""A line of the user's; the next two inside a forward, and inside a backward."""
IN_FORWARD = "script in forward"
IN_BACKWARD = "script in backward"
OBJECTS = "script's objects"
"""A line of the user's that sends objects of Python, which are pickled."""
PACKAGE = "package"
"""An installed package other than torch."""

OF_SCRIPT = (SCRIPT, IN_FORWARD, IN_BACKWARD, OBJECTS)
ISSUERS = (REDUCER, BUFFERS, FSDP, FSDP2, SHARDED_OPTIMIZER, SYNC_NORM, TENSOR, *OF_SCRIPT, PACKAGE)

UNKNOWN = -1
"""The number in place of that of a source line, where it is not known who issues a collective."""


@dataclass(frozen=True, slots=True)
class Issuers:
    """Who issues the collectives of the steps with one signature; the last line of a signature counts."""

    signature: Shared[int]
    counts: Shared[tuple[int, ...]] = ()
    """1 + the number of a source line (0: not known), the number of collectives in a row that it issues, the next line,
    ..."""

    def __post_init__(self) -> None:
        if len(self.counts) % 2:
            raise ValueError("a source line without the number of its collectives")

    def lines(self) -> Iterator[int]:
        """The number of the source line of each collective, or `UNKNOWN`."""
        for line, count in zip(self.counts[::2], self.counts[1::2], strict=True):
            yield from (line - 1 for _ in range(count))


def counted(lines: Sequence[int]) -> tuple[int, ...]:
    """The `Issuers.counts` of these numbers of source lines."""
    return tuple(value for line, row in groupby(lines) for value in (line + 1, len(list(row))))
