"""What the helper thread makes of events stays the same to the byte, however it gets there."""

from __future__ import annotations

import json
from pathlib import Path

from tests.golden.event_streams import lines_of, streams

EXPECTED = Path(__file__).with_name("event-streams-expected.jsonl")


def test_events_become_the_same_lines() -> None:
    expected = [json.loads(line) for line in EXPECTED.read_text(encoding="utf-8").splitlines()]
    for number, ((chance, events), lines) in enumerate(zip(streams(), expected, strict=True)):
        assert lines_of(chance, events) == lines, f"stream {number}: {sorted(chance.features)}"
