"""The shared form of a rank's steps: the blocks made anew with those columns only that may be shared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from ddlprof.model.blocks import (
    COLLECTIVES,
    FIRST_SEQS,
    HEAD_BYTES,
    LONG_STEP,
    STEP,
    SUMS,
    TIMES,
    Block,
    BlockStream,
    Layout,
    encode_block,
)
from ddlprof.store.step_blocks import dtype_of

Names = Mapping[str, set[str]]
"""For each kind of block, and for `TIMES`, the columns that may be shared."""


def shared_names(step: set[str], sums: set[str], times: set[str]) -> Names:
    """The columns by the kind of block: those of a step, of sums, and of the times of a collective."""
    of_steps = {*step, FIRST_SEQS, COLLECTIVES}
    return {STEP.decode(): of_steps, LONG_STEP.decode(): of_steps, SUMS.decode(): sums, TIMES: times}


def shared_layouts(layouts: Mapping[str, Layout], names: Names) -> dict[str, Layout]:
    """The columns that are shared, as the header names them."""
    return {
        kind: tuple(column for column in layout if column[0] in names[kind])
        for kind, layout in layouts.items()
        if kind in names
    }


def shared_blocks(layouts: Mapping[str, Layout], steps: bytes, names: Names) -> bytes:
    """The undamaged blocks with the shared columns. Numbers that damage has left out stay left out."""
    found, _ = BlockStream(layouts).take(steps)
    return b"".join(_anew(found, layouts, names))


def _anew(found: list[Block], layouts: Mapping[str, Layout], names: Names) -> Iterator[bytes]:
    left_out = 0
    for block in found:
        kind = block.kind.decode()
        if kind not in names:  # of a later version
            left_out += 1
            continue
        rows = _only(block.whole[HEAD_BYTES : block.seqs_at], layouts[kind], names[kind])
        times = _only(block.whole[block.times_at :], layouts.get(TIMES, ()), names[TIMES])
        seqs = bytes(block.whole[block.seqs_at : block.times_at])
        yield encode_block(block.kind, block.number - left_out, block.counts, rows + seqs + times)


def _only(packed: memoryview, layout: Layout, names: set[str]) -> bytes:
    if not packed:
        return b""
    table = np.frombuffer(packed, dtype=dtype_of(layout))
    kept = np.empty(len(table), dtype=dtype_of([column for column in layout if column[0] in names]))
    for name in kept.dtype.names or ():
        kept[name] = table[name]
    return kept.tobytes()
