"""Asks torch.compile now and then where it has broken a graph, and why."""

from __future__ import annotations

import traceback

from ddlprof.collect.process.frames import USER
from ddlprof.collect.process.stacks import CodeLocator
from ddlprof.model.records import GraphBreak
from ddlprof.torch_private.compile import graph_breaks

_LONGEST = 200
_MOST = 20


class GraphBreaks:
    """`news` gives each place at which a graph was broken once, with the reason of the first time."""

    def __init__(self, places: CodeLocator) -> None:
        self._places = places
        self._seen = 0
        self._told: set[str] = set()

    def news(self) -> list[GraphBreak]:
        """The breaks at places that were not told yet."""
        every, found = graph_breaks(), []
        seen, self._seen = self._seen, len(every)
        for each in every[seen:]:
            place = self._place(each.user_stack)
            if place and place not in self._told and len(self._told) < _MOST:
                self._told.add(place)
                found.append(GraphBreak(len(self._told) - 1, place, _first_line(each.reason)))
        return found

    def _place(self, stack: list[traceback.FrameSummary]) -> str:
        """The innermost line of the user's; empty if there is none."""
        lines = [frame for frame in stack if self._places.owner(frame.filename) == USER]
        return self._places.text_of(lines[-1].filename, lines[-1].lineno or 0, lines[-1].name) if lines else ""


def _first_line(reason: str) -> str:
    return " ".join(next(iter(reason.strip().splitlines()), "").split())[:_LONGEST]
