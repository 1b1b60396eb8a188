"""The page around the sections: its policy, its outline, and what it brings along."""

from __future__ import annotations

import hashlib
import re
from importlib.resources import files
from itertools import pairwise

import pytest

from ddlprof.report.html.chart import ChartMenu, chart, short
from ddlprof.report.html.element import table, tag
from ddlprof.report.html.shell import OWN_SCRIPTS, Absent, Section, page
from tests.unit.report.html.test_element import Read

ASSETS = files("ddlprof.report.html")
ECHARTS_SHA256 = "b66b25aeb4df84e33199dc21694014d336d222cbd9deb0e5a7c14bd6aa0d0fd0"
"""Of dist/echarts.min.js in the package echarts 6.1.0 of npm."""


def example() -> str:
    """A page with a chart and hostile names everywhere."""
    name = "<script>alert(1)</script>\"'"
    figure = chart(
        "one", "bars", {"unit": "ms", "bars": [{"label": name, "value": 1}]}, caption=name, alt=name,
        table=table(name, [name, name], [[name, name]]), choice=ChartMenu(name, [name, "b"]), steps=(1, 9),
    )  # fmt: skip
    sections: list[Section | Absent] = [
        Section("first", name, figure),
        Absent(name, name),
        Section("second", "Second", tag("h3", name)),
    ]
    return "".join(page(name, name, tag("p", name), sections))


def policy(text: str) -> str:
    read = Read(text)
    return next(a["content"] or "" for t, a in read.tags if t == "meta" and a.get("http-equiv"))


def test_the_outline_is_one_that_can_be_walked() -> None:
    read = Read(example())
    names = [name for name, _ in read.tags]
    levels = [int(name[1]) for name in names if re.fullmatch(r"h[1-6]", name)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(later <= earlier + 1 for earlier, later in pairwise(levels))
    assert {"header", "nav", "main", "footer"} <= set(names)
    assert ("html", {"lang": "en"}) in read.tags
    ids = [attributes["id"] for _, attributes in read.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    for name, attributes in read.tags:
        for key in ("for", "aria-labelledby", "data-source"):
            assert key not in attributes or attributes[key] in ids
        if (attributes.get("href") or "").startswith("#"):
            assert (attributes["href"] or "")[1:] in ids, name


def test_the_library_is_the_one_that_was_published() -> None:
    vendored = ASSETS.joinpath("vendor")
    assert hashlib.sha256(vendored.joinpath("echarts.min.js").read_bytes()).hexdigest() == ECHARTS_SHA256
    assert "Apache License" in vendored.joinpath("LICENSE").read_text(encoding="utf-8")
    assert "Apache Software Foundation" in vendored.joinpath("NOTICE").read_text(encoding="utf-8")
    assert "Bostock" in vendored.joinpath("LICENSE-d3").read_text(encoding="utf-8")


def test_our_scripts_make_no_html_and_run_no_text() -> None:
    for name in OWN_SCRIPTS:
        text = ASSETS.joinpath(name).read_text(encoding="utf-8")
        assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|new Function|fetch\(", text)


def colours(name: str) -> dict[str, str]:
    text = ASSETS.joinpath(name).read_text(encoding="utf-8")
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", text))


def contrast(one: str, other: str) -> float:
    """The ratio of WCAG 2."""

    def luminance(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("name", ["page.css", "dark.css"])
def test_text_and_classes_can_be_told_from_the_page(name: str) -> None:
    found = colours(name)
    for behind in ("background", "panel"):
        for text in ("text", "muted", "accent", "good", "warning", "critical"):
            assert contrast(found[text], found[behind]) >= 4.5, text
    for key, value in found.items():
        if key.startswith("class-") or key == "focus":
            assert contrast(value, found["panel"]) >= 3, key


def test_both_themes_have_the_same_colours() -> None:
    assert colours("dark.css").keys() == colours("page.css").keys()


def test_every_class_has_a_colour() -> None:
    from ddlprof.model.classes import TIMES

    assert {f"class-{name.replace('_', '-')}" for name in TIMES[1:]} <= colours("page.css").keys()


def test_long_labels_keep_their_ends() -> None:
    assert short("abc") == "abc"
    assert short("a" * 50 + "b" * 50, 11) == "aaaaa…bbbb"
    assert len(short("x" * 10_000)) <= 60
