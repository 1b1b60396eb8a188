"""Pickles of plain values are read as `pickle` reads them; programs that do anything else, or too much, are refused."""

from __future__ import annotations

import os
import pickle
import tracemalloc
from collections import OrderedDict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlprof.base.plain_pickle import parse_plain_pickle
from ddlprof.base.reading import ReadingError

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(max_size=300),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.tuples(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(value=PLAIN, protocol=st.integers(2, 5))
def test_plain_values_come_back(value: Any, protocol: int) -> None:
    assert parse_plain_pickle(pickle.dumps(value, protocol)) == value


def test_a_value_in_two_places_comes_back_in_both() -> None:
    frame = {"name": "train", "line": 4}
    assert parse_plain_pickle(pickle.dumps([[frame, frame], [frame] * 2000])) == [[frame, frame], [frame] * 2000]


class Evil:
    """Would run a command when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("true",)


def doubled(times: int) -> Any:
    value: Any = ["x"]
    for _ in range(times):
        value = [value, value]
    return value


def within_itself() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


def tuples(times: int) -> bytes:
    """A dictionary whose key is a tuple that is wide and deep: its hash would take for ever."""
    return b"\x80\x02})" + b"q\x00h\x00\x86" * times + b"K\x01s."


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (pickle.dumps(Evil()), "only plain values are read"),
        (pickle.dumps(Evil(), 0), "only plain values are read"),
        (pickle.dumps({1, 2}), "only plain values are read"),
        (pickle.dumps(b"x"), "only plain values are read"),
        (pickle.dumps(OrderedDict(a=1)), "only plain values are read"),
        (b"\x80\x02(I1\nI2\nd.", "only plain values are read"),
        (b"", "cut off at byte 0"),
        (b".", "no value"),
        (b"\x80\x04", "cut off"),
        (b"\x80\x04e.", "damaged"),
        (b"\x80\x04u.", "damaged"),
        (b"\x80\x04]K\x01\x87.", "damaged"),
        (b"\x80\x04h\x05.", "damaged"),
        (b"\x80\x04q\x05.", "damaged"),
        (b"\x80\x04K\x01K\x02a.", "damaged"),
        (b"\x80\x04](K\x01u.", "damaged"),
        (b"\x80\x04}(K\x01u.", "damaged"),
        (b"\x80\x04\x8c\x01\xff.", "no UTF-8 text"),
        (b"\x80\x04X\x03\x00\x00\x00\xed\xa0\x80.", "no UTF-8 text"),  # half a character
        (b"\x80\x04\x8d" + (2**62).to_bytes(8, "little") + b"x.", "cut off"),
        (b"\x80\x04\x95" + (2**60).to_bytes(8, "little") + b"}.", "cut off"),
        (b"\x80\x04\x8b\xff\xff\xff\x7f.", "cut off"),
        (pickle.dumps(10**4999), "a whole number of 2,076 bytes; at most 9 are read"),
        (pickle.dumps(within_itself()), "nested more than 32 deep"),
        (pickle.dumps(doubled(40)), "more than 10,000 values"),
        (pickle.dumps(doubled(20)), "more than 10,000 values"),
        (pickle.dumps([[[0] * 1000] * 1000] * 1000), "more than 10,000 values"),
        (b"\x80\x02" + b"]" * 20_000 + b".", "more than 10,000 values"),
        (tuples(60), "a list is the name of a field"),
    ],
)
def test_what_is_not_plain_or_not_small_is_refused_in_one_line(content: bytes, message: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ReadingError) as raised:
            parse_plain_pickle(content, most_instructions=10_000, most_values=10_000)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_high_number_in_the_memo_takes_no_memory() -> None:
    tracemalloc.start()
    try:
        assert parse_plain_pickle(b"\x80\x04]r\xff\xff\xff\x7fj\xff\xff\xff\x7f\x86.") == ([], [])
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_what_is_in_many_places_is_gone_through_once() -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ReadingError, match="more than 20,000,000 values"):
            parse_plain_pickle(pickle.dumps([doubled(24)] * 1000))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20  # a list for each place would take 160 MB, and its time
    finally:
        tracemalloc.stop()
