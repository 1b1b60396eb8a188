from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pytest

from ddlprof.base.errors import ReadingError
from ddlprof.base.typed import NOT_NEGATIVE, POSITIVE, SHARE, Interval, Length, decode, settle


@dataclass(frozen=True)
class Part:
    step_s: Annotated[float, POSITIVE]
    gpus: Annotated[tuple[Annotated[int, Interval(1, 1024)], ...], Length(1, 4)] = (1,)


@dataclass(frozen=True)
class Whole:
    name: Annotated[str, Length(1, 20)]
    count: int
    maybe: float | None
    parts: Sequence[Part] = ()
    words: list[str] = field(default_factory=list)
    ready: bool = False
    share: Annotated[float | None, SHARE] = None
    pricing: Literal["spot", "on_demand"] = "spot"
    pair: tuple[int, str] = (0, "")
    facts: dict[str, int] = field(default_factory=dict)
    rest: Any = None
    text_or_number: str | int = 0

    def __post_init__(self) -> None:
        settle(self)
        if self.name == "wrong":
            raise ValueError("this name is wrong")


GOOD: dict[str, Any] = {"name": "a", "count": 1, "maybe": 0.5}


def test_a_record_of_json() -> None:
    value = GOOD | {
        "maybe": None,
        "parts": [{"step_s": 1, "gpus": [4, 4]}, {"step_s": 0.5}],
        "words": ["x"],
        "ready": True,
        "share": 0,
        "pair": [1, "x"],
        "facts": {"k": 1},
        "rest": [{"any": None}],
        "text_or_number": "x",
        "of another version": [],
    }
    assert decode(Whole, value) == Whole(
        name="a",
        count=1,
        maybe=None,
        parts=(Part(1, (4, 4)), Part(0.5)),
        words=["x"],
        ready=True,
        share=0,
        pair=(1, "x"),
        facts={"k": 1},
        rest=[{"any": None}],
        text_or_number="x",
    )


def test_what_is_missing_or_null_has_its_default() -> None:
    assert decode(Whole, {"name": "a", "count": 1, "pricing": None, "parts": None}) == Whole("a", 1, None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": 5}, "name: a text is expected, not 5"),
        ({"name": ""}, "name: a text of 1 to 20 characters is expected, not ''"),
        ({"name": "x" * 99}, f"name: a text of 1 to 20 characters is expected, not '{'x' * 40}...'"),
        ({"name": "wrong"}, "this name is wrong"),
        ({"count": None}, "count: a whole number is expected, not null"),
        ({"count": 1.5}, "count: a whole number is expected, not 1.5"),
        ({"count": True}, "count: a whole number is expected, not true"),
        ({"count": 10**400}, "count: a whole number that is not so large is expected, not a number that is too large"),
        ({"count": 1e20}, "count: a whole number that is not so large is expected, not a number that is too large"),
        ({"maybe": "1"}, "maybe: a number is expected, not '1'"),
        ({"maybe": []}, "maybe: a number is expected, not a list"),
        ({"maybe": float("nan")}, "maybe: a number is expected, not nan"),
        ({"maybe": float("inf")}, "maybe: a number that is not so large is expected, not inf"),
        ({"maybe": 1e300}, "maybe: a number that is not so large is expected, not 1e+300"),
        ({"maybe": -(10**400)}, "maybe: a number is expected, not a number that is too small"),
        ({"parts": {}}, "parts: a list is expected, not an object"),
        ({"parts": "ab"}, "parts: a list is expected, not 'ab'"),
        ({"parts": [1]}, "parts[0]: an object is expected, not 1"),
        ({"parts": [{"step_s": 1}, {}]}, "parts[1].step_s is missing"),
        ({"parts": [{"step_s": "x"}]}, "parts[0].step_s: a positive number is expected, not 'x'"),
        ({"parts": [{"step_s": 0}]}, "parts[0].step_s: a positive number is expected, not 0"),
        ({"parts": [{"step_s": 1, "gpus": []}]}, "parts[0].gpus: 1 to 4 items are expected, not 0"),
        ({"parts": [{"step_s": 1, "gpus": [1] * 5}]}, "parts[0].gpus: 1 to 4 items are expected, not 5"),
        (
            {"parts": [{"step_s": 1, "gpus": [4, 0]}]},
            "parts[0].gpus[1]: a whole number from 1 to 1024 is expected, not 0",
        ),
        ({"words": ["x", None]}, "words[1]: a text is expected, not null"),
        ({"ready": 1}, "ready: true or false is expected, not 1"),
        ({"share": 1.5}, "share: a number from 0 to 1 is expected, not 1.5"),
        ({"pricing": "free"}, "pricing: one of spot, on_demand is expected, not 'free'"),
        ({"pricing": []}, "pricing: one of spot, on_demand is expected, not a list"),
        ({"pair": [1]}, "pair: 2 items are expected, not 1"),
        ({"pair": ["x", 1]}, "pair[0]: a whole number is expected, not 'x'"),
        ({"facts": {"k": "v"}}, "facts.'k': a whole number is expected, not 'v'"),
        ({"facts": []}, "facts: an object is expected, not a list"),
        ({"text_or_number": []}, "text_or_number: a whole number is expected, not a list"),
    ],
)
def test_an_error_names_the_field_and_what_is_expected(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ReadingError) as caught:
        decode(Whole, GOOD | change)
    assert str(caught.value) == message


def test_what_is_no_object_at_all() -> None:
    with pytest.raises(ReadingError, match=r"^an object is expected, not a list$"):
        decode(Whole, [])
    with pytest.raises(ReadingError, match=r"^header\.name is missing$"):
        decode(Whole, {}, where="header")


def test_a_range_for_all_numbers_that_have_none() -> None:
    with pytest.raises(ReadingError, match=r"^count: a whole number of 0 or more is expected, not -1$"):
        decode(Whole, GOOD | {"count": -1}, numbers_are=NOT_NEGATIVE)
    assert decode(Whole, GOOD | {"count": -1}).count == -1


def test_types_that_are_no_records() -> None:
    assert decode(list[int], [1, 2.0]) == [1, 2]
    with pytest.raises(ReadingError, match=r"^\[1\]: a whole number is expected, not 'x'$"):
        decode(list[int], [1, "x"])


def test_records_made_in_python_are_checked_by_the_same_rules() -> None:
    made: Any = Part
    with pytest.raises(ReadingError, match=r"^step_s: a positive number is expected, not -1$"):
        settle(made(-1))


def test_lists_and_numbers_of_other_libraries_become_pythons_own() -> None:
    made: Any = Whole
    whole = made("a", np.int64(3), np.float32(0.5), parts=[Part(1.0)], pair=[1, "x"])
    assert whole == Whole("a", 3, 0.5, parts=(Part(1.0),), pair=(1, "x"))
    assert [type(each) for each in (whole.count, whole.maybe, whole.parts, whole.pair)] == [int, float, tuple, tuple]


def test_python_3_10_can_read_the_annotations_of_records() -> None:
    """Its `get_type_hints` refuses `_: KW_ONLY`, and ClassVar without a type, written as strings."""
    root = Path(__file__).resolve().parents[3]
    refused = re.compile(r"^\s+(_: KW_ONLY$|\w+: ClassVar =)", re.MULTILINE)
    sources = [
        path for package in ("ddlprof", "instance_catalog", "recommender") for path in (root / package).rglob("*.py")
    ]
    assert len(sources) > 100
    assert [path for path in sources if refused.search(path.read_text(encoding="utf-8"))] == []
