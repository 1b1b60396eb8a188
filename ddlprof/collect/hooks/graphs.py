"""Captures and replays of graphs, by the methods of the accelerator's class of graphs."""

from __future__ import annotations

import functools
from typing import Any

from ddlprof.collect.install import Uninstall, all_of, replace
from ddlprof.collect.surroundings import Surroundings


def install(around: Surroundings) -> Uninstall:
    """Captures and replays of the accelerator's class of graphs, which torch's own helpers use, too."""
    captures = around.captures
    graph = None if around.accelerator is None else around.accelerator.graph_type
    if graph is None:
        return captures.forget
    begin, end, replay = graph.capture_begin, graph.capture_end, graph.replay

    @functools.wraps(begin)
    def capture_begin(self: Any, *args: Any, **kwargs: Any) -> Any:
        captures.begin(self)
        try:
            return begin(self, *args, **kwargs)
        except BaseException:
            captures.end(self, False)
            raise

    @functools.wraps(end)
    def capture_end(self: Any, *args: Any, **kwargs: Any) -> Any:
        captured = False
        try:
            result = end(self, *args, **kwargs)
            captured = True
            return result
        finally:
            captures.end(self, captured)

    @functools.wraps(replay)
    def timed_replay(self: Any, *args: Any, **kwargs: Any) -> Any:
        after = captures.replaying(self)
        try:
            return replay(self, *args, **kwargs)
        finally:
            if after is not None:
                after()

    return all_of(
        captures.forget,
        replace(graph, "capture_begin", capture_begin),
        replace(graph, "capture_end", capture_end),
        replace(graph, "replay", timed_replay),
    )
