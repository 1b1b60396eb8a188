"""Captures and replays of graphs, by the methods of the accelerator's classes of graphs."""

from __future__ import annotations

import functools
from typing import Any

from ddlprof.collect.hook_context import HookContext
from ddlprof.collect.hook_state.captures import Captures
from ddlprof.collect.install import Uninstall, all_of, replace


def install(context: HookContext) -> Uninstall:
    """Captures and replays of the accelerator's classes of graphs, which torch's own helpers use, too."""
    graphs = () if context.accelerator is None else context.accelerator.graph_types
    return all_of(context.captures.forget, *(_watch(graph, context.captures) for graph in graphs))


def _watch(graph: Any, captures: Captures) -> Uninstall:
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
        replace(graph, "capture_begin", capture_begin),
        replace(graph, "capture_end", capture_end),
        replace(graph, "replay", timed_replay),
    )
