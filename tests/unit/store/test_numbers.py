"""Lines of numbers: what is no number is refused, wherever it is among the others."""

from __future__ import annotations

import math

import pytest

from ddlprof.store.numbers import DAMAGE, numbers, whole_numbers


@pytest.mark.parametrize(
    "line",
    [
        '["q",1,nul]',
        '["q",1,3null]',
        '["q",1,]',
        '["q",,2]',
        '["q",1,03]',
        '["q",1,"2"]',
        '["q",1,[2]]',
        '["q",1,2]]',
        '["q",1,2',
        '["q",1,2]["q",1,2]',
        '["q",1,s]',
        '["q",1,٣]',
        "]",
        "",
        "5]",
        '["q",',
    ],
)
def test_other_lines_are_refused_wherever_they_are(line: str) -> None:
    good = ['["q",1,2]', '["q",4,5]']
    for lines in ([line, *good], [good[0], line, good[1]], [*good, line], [line]):
        with pytest.raises(DAMAGE):
            whole_numbers(lines)
        with pytest.raises(DAMAGE):
            numbers(lines, 2)


def test_lines_may_have_any_number_of_whole_numbers_and_no_others() -> None:
    assert whole_numbers(['["q",1]', '["q",4,5,null]']) == [[1], [4, 5, -1]]
    assert whole_numbers([]) == []
    with pytest.raises(DAMAGE):
        whole_numbers(['["q",1.5]'])


def test_numbers_are_of_any_kind_and_as_many_in_each_line() -> None:
    (first, second) = numbers(['["c",1.5,-2e3]', '["c",4,null]'], 2).tolist()
    assert first == [1.5, -2000.0]
    assert second[0] == 4.0
    assert math.isnan(second[1])
    with pytest.raises(DAMAGE):
        numbers(['["c",1,2]', '["c",1,2,3]'], 2)
