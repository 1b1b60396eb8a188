"""Times, sizes and shares as people read them."""

from __future__ import annotations

import pytest

from ddlprof.base.units import (
    ago,
    count,
    duration,
    figure,
    gib,
    listed,
    percent,
    ranges,
    scale_for,
    scaled,
    seconds_of,
    short_time,
    signed_percent,
    significant,
    size,
    tenths_of_percent,
    time_in_one_unit,
    times,
    usd,
)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(12.34, "12.3 s"), (1.2345, "1234 ms"), (0.3181, "318 ms"), (0.0952, "95.2 ms"), (0.00123, "1.23 ms"),
     (0.00043, "430 µs"), (0.0000512, "51.2 µs"), (0.0, "0.0 µs")],
)  # fmt: skip
def test_times_have_about_three_digits(seconds: float, text: str) -> None:
    assert scale_for(seconds).time(seconds) == text


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [(0.01234, 3, "0.0123"), (9.876, 3, "9.88"), (123.4, 3, "123"), (999.6, 3, "1,000"), (12345.6, 3, "12,346"),
     (16000, 2, "16,000"), (0.0000123, 3, "0.0000123"), (-0.5, 3, "-0.5"), (40.0, 3, "40"), (0.0, 3, "0"),
     (8.20124, 5, "8.2012"), (1234.56, 5, "1,234.6"), (float("inf"), 3, "inf")],
)  # fmt: skip
def test_figures_have_no_exponents(value: float, digits: int, text: str) -> None:
    assert significant(value, digits) == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (2.45e10, "", "24.5 G"),
        (3e6, "FLOP", "3 MFLOP"),
        (999_900, "B", "1,000 kB"),
        (5e18, "", "5,000 P"),
        (7, "B", "7 B"),
    ],
)
def test_figures_with_a_prefix_have_none_either(value: float, unit: str, text: str) -> None:
    assert scaled(value, unit) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.0, "0 %"), (0.0003, "<0.1 %"), (0.0012, "0.1 %"), (0.0094, "0.9 %"), (0.0096, "1 %"), (0.224, "22 %")],
)  # fmt: skip
def test_small_shares_are_not_zero(share: float, text: str) -> None:
    assert percent(share) == text


def test_counts_are_singular_and_plural() -> None:
    assert [count(n, "step") for n in (0, 1, 2, 12345)] == ["0 steps", "1 step", "2 steps", "12,345 steps"]
    assert count(2, "process", "processes") == "2 processes"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0 seconds ago"),
        (1.5, "1 second ago"),
        (240, "4 minutes ago"),
        (3700, "1 hour ago"),
        (200_000, "2 days ago"),
    ],
)
def test_ago(seconds: float, text: str) -> None:
    assert ago(seconds) == text


def test_sizes_and_lists() -> None:
    assert gib(3 << 29) == "1.5 GiB"
    assert gib(400 << 20) == "400 MiB"
    assert listed(["a", "b"]) == "a, b"
    assert listed(["a", "b", "c"], most=2) == "a, b and 1 more"
    assert ranges([9, 3, 1, 2, 5, 6, 3]) == "1-3, 5, 6, 9"
    assert ranges(range(0, 20, 2), most=3) == "0, 2, 4 and 7 more"
    assert ranges([]) == ""


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (45, "45 s"), (5400, "90 min"), (43_200, "12 h"), (90 * 3600, "90 h"), (5 * 86_400, "5 d"),
        (2000 * 86_400, "2,000 d"),
    ],
)  # fmt: skip
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (59, "59 s"), (600, "10 min"), (3 * 3600 + 300, "3 h 5 min")]
)
def test_short_times(seconds: float, text: str) -> None:
    assert short_time(seconds) == text


@pytest.mark.parametrize(("seconds", "text"), [(95.3, "95.3 s"), (738.0, "12.3 min"), (18_720.0, "5.2 h")])
def test_a_time_in_one_unit(seconds: float, text: str) -> None:
    assert time_in_one_unit(seconds) == text


def test_shares_with_one_decimal() -> None:
    assert [tenths_of_percent(share) for share in (0.0, 0.2241, -0.003)] == ["0.0 %", "22.4 %", "-0.3 %"]
    assert [signed_percent(share) for share in (0.0001, 0.2241, -0.003)] == ["0.0 %", "+22.4 %", "-0.3 %"]


def test_what_is_not_known_is_a_dash() -> None:
    assert [figure(value) for value in (None, 0.0, 12.34)] == ["-", "0", "12.3"]
    assert seconds_of(None) is None
    assert seconds_of(2e9) == 2


def test_money_factors_and_bytes() -> None:
    assert [usd(value) for value in (0.01234, 12.3, 1234.5)] == ["0.0123 USD", "12.30 USD", "1,234.50 USD"]
    assert times(1.416) == "1.42x"
    assert [size(value) for value in (512, 1536, 3 << 20, 5 << 30)] == ["512 B", "1.5 KiB", "3 MiB", "5 GiB"]
