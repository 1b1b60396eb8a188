"""Dates and durations as schedulers write them."""

from __future__ import annotations

import pytest

from ddlprof.extensions.cluster.history.files import Wrong
from ddlprof.extensions.cluster.history.times import moment, seconds

AT_S = 1793613600.0


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-02T10:00:00", "2026-11-02 10:00:00", "2026-11-02T10:00:00Z", "2026-11-02T12:00:00+02:00",
        "2026-11-02T10:00:00.000000Z", "2026-11-02 10:00:00.0 UTC", "1793613600",
    ],
)  # fmt: skip
def test_dates(text: str) -> None:
    assert moment(text, "start") == AT_S


@pytest.mark.parametrize("text", ["", "Unknown", "None", "N/A"])
def test_what_has_no_date_yet(text: str) -> None:
    assert moment(text, "start") is None
    assert seconds(text, "elapsed") is None


@pytest.mark.parametrize(
    ("text", "expected_s"),
    [
        ("1-02:03:04", 93784), ("02:03:04", 7384), ("03:04", 184), ("03:04.500", 184.5), ("1-02", 93600),
        ("90", 90), ("1.5", 1.5), ("2h30m", 9000),
    ],
)  # fmt: skip
def test_durations(text: str, expected_s: float) -> None:
    assert seconds(text, "elapsed") == expected_s


@pytest.mark.parametrize("text", ["later", "2026-02-30T00:00:00", "-5", "1960-01-01", "9e99", "1e400"])
def test_no_date(text: str) -> None:
    with pytest.raises(Wrong, match="start"):
        moment(text, "start")


@pytest.mark.parametrize("text", ["soon", "1-", "-1", "1:2:3:4"])
def test_no_duration(text: str) -> None:
    with pytest.raises(Wrong, match="elapsed"):
        seconds(text, "elapsed")
