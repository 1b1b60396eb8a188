"""Lines of numbers: read at once or one by one, what comes out is the same, and what is no number is refused."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

from ddlprof.store.numbers import DAMAGE, whole_numbers, whole_numbers_at_once

PREFIX = b'["s",'
NAMES = ("step", "time", "maybe")
OPTIONAL = frozenset({"maybe"})


def lines_of(rows: list[list[int | None]]) -> list[str]:
    return [json.dumps(["s", *row], separators=(",", ":")) for row in rows]


def at_once(lines: list[str], more: bool = True) -> tuple[list[list[int]], list[int]]:
    table, rest = whole_numbers_at_once("".join(f"{line}\n" for line in lines).encode(), PREFIX, NAMES, OPTIONAL, more)
    return table.tolist(), rest.tolist()


def one_by_one(lines: list[str], more: bool = True) -> tuple[list[list[int]], list[int]]:
    table, rest = whole_numbers(lines, NAMES, OPTIONAL, more)
    return table.tolist(), rest.tolist()


@pytest.mark.parametrize(
    "line",
    [
        '["s",1,2]',
        '["s",1,2,3,4]',
        '["s",1,null,3]',
        '["s",1,2,-3]',
        '["s",1,2,nul]',
        '["s",1,2,nnnn]',
        '["s",1,2,n]',
        '["s",1,2,3null]',
        '["s",1,2,]',
        '["s",,2,3]',
        '["s",1,2,03]',
        '["s",1,2,3.0]',
        '["s",1,2,"3"]',
        '["s",1,2,[3]]',
        '["s",1,2,3]]',
        '["s",1,2,3',
        '["s",1,2,3]["s",1,2,3]',
        '["s",1,2,s]',
        '["s",1,2,3u]',
        '["s",1,2,٣]',
        '["c",1,2,3]',
        "]",
        "",
        "5]",
        '["s",',
    ],
)
def test_other_lines_are_refused_wherever_they_are(line: str) -> None:
    good = ['["s",1,2,3]', '["s",4,5,null]']
    for lines in ([line, *good], [good[0], line, good[1]], [*good, line], [line]):
        with pytest.raises(DAMAGE):
            at_once(lines, more=False)


@pytest.mark.parametrize("line", ['["s", 1, 2, 3]', f'["s",1,2,{10**18}]'])
def test_what_others_may_write_is_left_to_the_slower_way(line: str) -> None:
    with pytest.raises(DAMAGE):
        at_once([line])
    assert one_by_one([line])[0]


def test_any_change_of_a_letter_is_refused_or_read_alike() -> None:
    draw = random.Random(1)
    lines = lines_of([[1, 20, None, 300], [4, 5, 6]])
    text = "\n".join(lines)
    read = 0
    for _ in range(3000):
        place = draw.randrange(len(text))
        letter = draw.choice('0123456789,-[]"nulse \n')
        changed = (text[:place] + letter + text[place + draw.randrange(2) :]).split("\n")
        try:
            found = at_once(changed)
        except DAMAGE:
            continue
        read += 1
        assert found == one_by_one(changed)
    assert read > 100


def test_a_number_is_a_whole_one_of_64_bits() -> None:
    table, _ = whole_numbers_at_once(b'["s",1,2,999999999999999999]\n', PREFIX, NAMES, OPTIONAL, False)
    assert table.dtype == np.int64
    assert table[0, 2] == 10**18 - 1
