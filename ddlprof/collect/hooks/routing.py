"""Tokens that are routed to experts: the rows that come and go in all-to-alls of uneven parts, noted in some steps.

The sizes of the parts are arguments of the operator, numbers on the host, so nothing is read and nothing waits.
"""

from __future__ import annotations

from typing import Any

from ddlprof.collect.recorder import Recorder
from ddlprof.model.experts import RoutedTokens, written
from ddlprof.torch_private.collectives import arguments_of

UNEVEN = "alltoall_base_"
"""The operator that all-to-alls with sizes of parts issue."""
_STEPS_AT_A_STRIDE = 32
"""After each so many noted steps the stride between them doubles."""
_MOST_IN_A_STEP = 1000


class Routing:
    """What was noted in the step under way, by group."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.due = 0
        """The number of updates from which on all-to-alls are noted again."""
        self._step, self._stride, self._steps = -1, 1, 0
        self._rows: dict[str, tuple[int, list[tuple[int, int]]]] = {}
        self._places: tuple[int, int] | None = None

    def know(self, operator: Any) -> None:
        """Learns from the schema of the operator which of its arguments are the sizes of parts."""
        names = [argument.name for argument in arguments_of(operator)]
        self._places = names.index("output_split_sizes"), names.index("input_split_sizes")

    def note(self, args: tuple[Any, ...], group: str, ranks: int) -> None:
        """Notes an all-to-all that is about to be issued. Without sizes, all parts are equal."""
        step = self._recorder.boundaries
        if step != self._step:
            self.flush()
            if step < self.due:
                return
            self._step = step
        if self._places is None or len(args) <= max(self._places):
            return
        came, left = (args[place] for place in self._places)
        rows = self._rows.setdefault(group, (ranks, []))[1]
        if (came or left) and len(rows) < _MOST_IN_A_STEP:
            whole = [int(tensor.shape[0]) for tensor in args[:2]]
            rows.append((sum(came) if came else whole[0], sum(left) if left else whole[1]))

    def flush(self) -> None:
        """Writes what was noted, and decides which step is next."""
        found, self._rows = self._rows, {}
        for group, (ranks, rows) in found.items():
            if rows:
                self._recorder.record(RoutedTokens(self._step, group, ranks, written(rows)))
        if found:
            self._steps += 1
            if self._steps % _STEPS_AT_A_STRIDE == 0:
                self._stride *= 2
            self.due = self._step + self._stride
