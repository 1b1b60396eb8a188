"""The plot of characters: its axes, and that its marks are where they belong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddlprof.report.plans.pareto_plot import apart, axes, fitted, plot


def test_an_axis_is_logarithmic_from_a_decade_on() -> None:
    assert fitted([9.8, 10.1, 12.3], 7).ticks == (10.0, 10.5, 11.0, 11.5, 12.0)
    assert not fitted([9.8, 10.1, 12.3], 7).is_log
    assert fitted([2.8, 80], 7).ticks == (5.0, 10.0, 20.0, 50.0)
    assert fitted([2.8, 80], 7).is_log


@pytest.mark.parametrize("values", [[1.0], [0.001, 0.0010001], [1e-3, 1e9], [3, 29], [3, 31], [1.0, 9.99]])
def test_every_axis_has_few_ticks_within_it_and_values_in_sight(values: list[float]) -> None:
    for most in (5, 7):
        axis = fitted(values, most)
        assert 1 <= len(axis.ticks) <= most + 1
        assert axis.low <= axis.ticks[0] <= axis.ticks[-1] <= axis.high
        assert all(0 < axis.share(value) < 1 for value in values)


def test_a_limit_far_away_does_not_make_the_plans_small() -> None:
    points = [(9.8, 186.0), (12.3, 0.09)]
    assert axes(points, 120.0)[0] == axes(points, 0.5)[0] == fitted([9.8, 12.3], 7)
    x, _, in_sight = axes(points, 13.0)
    assert in_sight
    assert x.high > 13.0


def test_marks_that_would_cover_each_other_are_one() -> None:
    points = [(9.8, 186.0), (9.801, 185.0), (9.81, 93.0), (12.3, 0.09)]
    x, y, _ = axes(points, 120.0)
    assert apart(points, x, y) == [0, 2, 3]
    assert apart([], x, y) == []


def test_a_plot_has_its_points_where_they_are() -> None:
    points = [(1.0, 100.0, "a"), (10.0, 10.0, ""), (100.0, 1.0, "b")]
    x, y, _ = axes([point[:2] for point in points], 10.0)
    lines = plot(points, x, y, 10.0)
    rows = {mark: next(number for number, line in enumerate(lines) if mark in line) for mark in "a·b"}
    assert rows["a"] < rows["·"] < rows["b"]
    assert lines[rows["a"]].startswith("100┤")
    columns = {mark: lines[row].index(mark) for mark, row in rows.items()}
    assert columns["a"] < columns["·"] < columns["b"]
    assert columns["·"] == lines[rows["a"]].rindex("│", 0, -1)  # on the limit, and seen
    assert lines[-1].split() == ["1", "2", "5", "10", "20", "50", "100"]
    assert "\x1b" not in "".join(lines)


def test_a_plot_of_one_point() -> None:
    x, y, in_sight = axes([(1.0, 1.0)], 5.0)
    lines = plot([(1.0, 1.0, "a")], x, y, 5.0 if in_sight else None)
    assert any("a" in line for line in lines)
    assert {line.count("│") for line in lines[1:-2]} <= {1, 2}  # the frame alone: the limit is out of sight


def test_the_whole_plot() -> None:
    points = [(1.0, 20.0, "a"), (2.5, 15.0, ""), (7.0, 9.0, "b"), (30.0, 4.0, ""), (1.0, 20.0, "")]
    x, y, _ = axes([point[:2] for point in points], 12.0)
    lines = plot(points, x, y, 12.0)
    assert lines == [
        "  ┌────────────────────────────────────────────────────┬─────────────────────┐",
        "20┤   a                                                │                     │",
        *["  │                                                    │                     │"] * 3,
        "15┤                     ·                              │                     │",
        *["  │                                                    │                     │"] * 2,
        "10┤                                                    │                     │",
        "  │                                         b          │                     │",
        *["  │                                                    │                     │"] * 2,
        " 5┤                                                    │                     │",
        "  │                                                    │                 ·   │",
        "  └───┬────────────┬──────────────────┬────────────┬───┴─────────┬───────────┘",
        "      1            2                  5           10            20",
    ]


def test_names_of_ticks_make_room_for_each_other_or_are_left_out() -> None:
    x, y, _ = axes([(0.03, 6000.0), (75_000.0, 800_000.0)], 1e9)
    names = plot([(0.03, 6000.0, ""), (75_000.0, 800_000.0, "")], x, y, None)[-1]
    assert names.split() == ["0.1", "1", "10", "100", "1,000", "10,000", "100,000"]
    crowded = replace(x, low=0.0, high=1.0, is_log=False, ticks=(0.5001, 0.5002, 0.9))
    lines = plot([(0.03, 6000.0, "")], crowded, y, None)
    assert lines[-1].split() == ["0.5", "0.9"]
    assert lines[-2].count("┬") == 2
