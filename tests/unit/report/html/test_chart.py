"""Numbers of charts as text, and the colours of what is a class and what is not."""

from __future__ import annotations

import base64
import re
import zlib
from importlib.resources import files
from typing import Any

import numpy as np
import pytest

from ddlprof.report.html.chart import packed

STYLES = files("ddlprof.report.html")


def unpacked(box: dict[str, Any]) -> list[float | None]:
    """What the page's script makes of packed numbers."""
    planes = np.frombuffer(zlib.decompress(base64.b64decode(box["text"])), dtype=np.uint8).reshape(2, -1)
    assert planes.shape[1] == box["count"]
    levels = planes[0] + 256 * planes[1].astype(int)
    values = box["low"] * np.exp(box["ratio"] * (levels - 2))
    return [None if level == 0 else 0.0 if level == 1 else float(v) for level, v in zip(levels, values, strict=True)]


def test_packed_numbers_have_three_digits() -> None:
    drawn = np.random.default_rng(1).lognormal(2.0, 1.0, 1000)
    found = unpacked(packed(np.concatenate([drawn, [0.0, np.nan, 1e-3, 1e5]])))
    assert found[:1000] == pytest.approx(drawn.tolist(), rel=3e-3)
    assert found[1000:1002] == [0.0, None]
    assert found[1002:] == pytest.approx([1e-3, 1e5])


@pytest.mark.parametrize("values", [[], [0.0, 0.0], [np.nan], [3.5, 3.5]])
def test_packed_numbers_without_a_range(values: list[float]) -> None:
    expected = [None if value != value else value for value in values]
    assert unpacked(packed(np.array(values))) == pytest.approx(expected)


@pytest.mark.parametrize("sheet", ["page.css", "dark.css"])
def test_no_class_has_the_colour_of_what_is_none(sheet: str) -> None:
    text = STYLES.joinpath(sheet).read_text(encoding="utf-8")
    classes = dict(re.findall(r"--class-([\w-]+): (#\w+)", text))
    series = dict(re.findall(r"--series-(\d+): (#\w+)", text))
    assert len(classes) > 10
    assert len(set(series.values())) == len(series) == 10
    assert not set(series.values()) & set(classes.values())


def test_scripts_give_the_colour_of_a_class_only_to_what_it_is() -> None:
    """Besides the names that come with the data: waits for a later rank, and exposed communication."""
    named = {
        (script, name)
        for script in ("charts.js", "comm_charts.js", "curve_charts.js", "plan_charts.js")
        for name in re.findall(
            r"""(?:look|classColour)\("([\w-]+)"|"--class-([\w-]+)""",
            STYLES.joinpath(script).read_text(encoding="utf-8"),
        )
        for name in [next(filter(None, name))]
        if not name.startswith("series-")
    }
    assert named == {("comm_charts.js", "straggler"), ("comm_charts.js", "comm")}
