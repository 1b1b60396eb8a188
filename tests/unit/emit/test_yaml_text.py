"""YAML that every reader takes for what it was, and in which nothing is invisible."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ddlprof.base.text import plain
from ddlprof.emit.yaml_text import yaml_text

TEXTS = st.text(max_size=40)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


@given(VALUES, st.lists(TEXTS, max_size=3))
def test_it_is_read_back(value: Any, comments: list[str]) -> None:
    text = yaml_text([(comments, {"value": value}), ([], {"next": 1})])
    assert list(yaml.safe_load_all(text)) == [{"value": value}, {"next": 1}]
    assert all(plain(line) == line for line in text.split("\n"))


@pytest.mark.parametrize("text", ["1e3", "1_000", "0o14", "y", "N", "true", "null", "12", ".5", "+1.", ""])
def test_a_text_stays_one_for_other_readers(text: str) -> None:
    """Go's reader takes `1e3` for a number and `y` for a truth, which this one does not."""
    assert yaml_text([([], {"a": text})]) in (f'a: "{text}"\n', f"a: '{text}'\n")


def test_scripts_stand_as_they_are_typed() -> None:
    long = "x " * 200 + "y"
    assert yaml_text([(["told"], {"run": f"a \\\n  'b' \"$C\"\n{long}\n", "of": [{"x": 1, "z": 2}]})]) == (
        f"# told\nrun: |\n  a \\\n    'b' \"$C\"\n  {long}\nof:\n  - x: 1\n    z: 2\n"
    )


def test_equal_parts_are_written_twice() -> None:
    part = {"a": [1]}
    assert "&" not in yaml_text([([], [part, part])])
