"""The trace event format of the Chromium project, which Perfetto and chrome://tracing open."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

Event: TypeAlias = dict[str, Any]


def trace_text(about: dict[str, Any], events: Iterable[Event]) -> Iterator[str]:
    """The JSON of a trace in pieces, ending with a line end. Names must be `plain`: viewers show escapes unread."""
    yield f'{{"displayTimeUnit": "ms", "otherData": {json.dumps(about, ensure_ascii=False)}, "traceEvents": ['
    before = "\n"
    for event in events:
        yield before + json.dumps(event, allow_nan=False, ensure_ascii=False)
        before = ",\n"
    yield "\n]}\n"


def process(pid: int, name: str) -> Event:
    return {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}


def track(pid: int, tid: int, name: str) -> Iterator[Event]:
    """Names a track of a process; tracks stand in the order of their numbers."""
    yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}
    yield {"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid, "args": {"sort_index": tid}}
