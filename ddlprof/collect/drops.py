"""Counts, by kind, the readings that failed while the training ran; the report gives each count and a reason.

A failed reading affects neither the training nor other measurements, and it is always reported.
"""

from __future__ import annotations

from typing import NamedTuple

from ddlprof.model.records import Drop

_MOST_CHARACTERS = 200


class DropKind(NamedTuple):
    """A kind of reading that can fail, and how the report words it."""

    source: str
    """The hook or part that failed, as in a note."""
    one: str
    """The words after "1 "."""
    many: str
    """The words after any number but one."""


STEP = DropKind("recorder", "step was not recorded", "steps were not recorded")
WINDOW = DropKind("windows", "profiler window could not be read", "profiler windows could not be read")
DURATION = DropKind("collectives", "collective was not timed", "collectives were not timed")
COLLECTIVE = DropKind("comm", "collective could not be read", "collectives could not be read")
COLLECTIVE_END = DropKind("comm", "collective's end could not be followed", "collectives' ends could not be followed")
STREAM_WAIT = DropKind("comm", "wait between streams could not be timed", "waits between streams could not be timed")
COUNT = DropKind("comm", "comparison with torch's count failed", "comparisons with torch's count failed")
COPY_CALL = DropKind("h2d", "call that may copy could not be looked at", "calls that may copy could not be looked at")
MODULE = DropKind("module", "module could not be timed", "modules could not be timed")
COMPILED_CALL = DropKind("compiled", "compiled call could not be timed", "compiled calls could not be timed")
SPLIT = DropKind("data", "wait could not be split into fetch and prep", "waits could not be split into fetch and prep")
SAMPLES = DropKind("data", "batch's samples could not be counted", "batches' samples could not be counted")
FACT = DropKind("features", "fact of the training could not be read", "facts of the training could not be read")
COUNTER = DropKind("context", "counter could not be read", "counters could not be read")
STACK = DropKind("stacks", "stack could not be sampled", "stacks could not be sampled")
HOOK = DropKind("hooks", "call of a hook failed", "calls of hooks failed")


class Drops:
    """The failed readings of one process. Any thread may call `add`; only one thread calls `take`."""

    def __init__(self) -> None:
        self._found: dict[DropKind, Drop] = {}
        self._changed: set[DropKind] = set()

    def add(self, kind: DropKind, reason: BaseException | str, count: int = 1) -> None:
        """Counts `count` failed readings of a kind. Raises nothing."""
        before = self._found.get(kind)
        if before is None:
            self._found[kind] = Drop(*kind, count, _in_words(reason))
        else:
            self._found[kind] = Drop(*kind, before.count + count, before.reason)
        self._changed.add(kind)

    def take(self) -> list[Drop]:
        """The kinds whose count has changed since the last call, each with its total and its first reason."""
        changed, self._changed = self._changed, set()
        return [self._found[kind] for kind in sorted(changed)]


def _in_words(reason: BaseException | str) -> str:
    if isinstance(reason, str):
        return reason
    try:
        message = str(reason).partition("\n")[0][:_MOST_CHARACTERS]
    except Exception:  # an error of the script's own
        message = ""
    return f"{type(reason).__name__}: {message}" if message else type(reason).__name__
