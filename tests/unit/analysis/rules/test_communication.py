"""What is said of communication by who issues it."""

from __future__ import annotations

from dataclasses import replace

from ddlprof.model import issuers
from ddlprof.model.source_locations import SourceLocation
from tests.unit.analysis.rules.test_rules import BUFFER, FOUR_TIMES, SCATTERED, at_line, by, found


def test_the_switch_is_that_of_the_way_of_sharding() -> None:
    times = FOUR_TIMES | {"strategy": "fsdp"}
    (two,) = found("no_sync", by(SCATTERED, **times))
    assert "set_requires_gradient_sync(False) in all but the last of 4 micro-batches" in two.next
    (one,) = found("no_sync", by(replace(SCATTERED, place=SourceLocation("", issuers.FSDP)), **times))
    assert "with model.no_sync(): in all but the last of 4" in one.next


def test_what_carries_the_bytes_of_the_gradients_may_be_them() -> None:
    (by_hand,) = found("own_messages", by(at_line(6, 1e8), strategy="none"))
    assert "DistributedDataParallel" in by_hand.next
    (other,) = found("own_messages", by(at_line(6, 1e9), strategy="none"))
    assert "DistributedDataParallel" not in other.next


def test_the_words_about_buffers_are_what_was_seen_of_them() -> None:
    (unknown,) = found("buffer_broadcast", by(BUFFER))
    assert "if all ranks make the same buffers" in unknown.next
    assert "BatchNorm" in unknown.next
    (same,) = found("buffer_broadcast", by(BUFFER, buffers_change=False, batch_statistics=False))
    assert same.next == "DistributedDataParallel(broadcast_buffers=False)"
