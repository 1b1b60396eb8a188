"""How text comes about: by one way for people, by one for programs, and by no other."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlprof.base.text import text_of
from ddlprof.report.json_csv import json_text
from ddlprof.report.text import aligned, labelled, wrapped

ROOT = Path(__file__).resolve().parents[3] / "ddlprof"
ANY_TEXT = st.text(st.characters(exclude_categories=()))


@given(ANY_TEXT)
def test_json_gives_back_what_went_in_and_can_be_written(name: str) -> None:
    """Lone surrogates, which UTF-8 cannot hold, too."""
    text = json_text({name: [name]})
    assert json.loads(text.encode("utf-8")) == {name: [name]}
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_json_stays_readable() -> None:
    assert json_text("Größe µ \U0001f600 \u202e \x7f \udcff") == '"Größe µ \U0001f600 \\u202e \\u007f \\udcff"\n'
    with pytest.raises(ValueError, match=r"NaN|not JSON compliant"):
        json_text(float("nan"))


@given(st.lists(ANY_TEXT, min_size=1))
def test_as_many_line_ends_as_lines(names: list[str]) -> None:
    assert text_of(names).count("\n") == len(names)
    assert len(text_of(names).splitlines()) == len(names)


def test_columns_are_as_wide_as_what_is_shown() -> None:
    rows = [["a\nb", "1"], ["東京", "22"], ["", "333"]]
    assert aligned(rows, right={1}) == [r"a\nb    1", "東京   22", "      333"]
    assert aligned([]) == []
    long = "x" * 5000
    assert aligned([[long, long]]) == [f"{long}  {long}"]  # a file has lines whole


def test_lines_break_at_the_width_behind_their_label() -> None:
    assert wrapped("one two\nthree", 12, "Label ") == ["Label one tw", r"      o\nthr", "      ee"]
    assert wrapped("", 12, "Label ") == []
    assert labelled("Note", "one two", "six", width=12) == ["Note     one", "         two", "         six"]
    assert labelled("Note", width=12) == []


FOLDERS = ("cli", "emit", "report", "extensions/*/cli", "extensions/*/report")
TEXTS = sorted(
    {*ROOT.glob("extensions/*/report.py"), *(path for name in FOLDERS for path in ROOT.glob(f"{name}/**/*.py"))}
)


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_other_way_to_text(path: Path) -> None:
    """A report that puts its own text together would show names as they are."""
    allowed = {
        "report/text.py": {"textwrap."},
        "report/json_csv.py": {"json.dumps"},
        "report/html/element.py": {"json.dumps"},
        "emit/frameworks/training.py": {"json.dumps"},  # TOML's strings are JSON's
        "report/trace_format.py": {"json.dumps"},  # names are plain before
        "cli/screen.py": {"typer.echo"},
    }
    ways = {r"json.dumps", r"textwrap.", r"typer.echo", r"sys.stderr.write", r"sys.stdout.write"}
    text = re.sub(r'typer\.echo\(f"ddlprof \{VERSION\}"\)', "", path.read_text(encoding="utf-8"))
    assert {way for way in ways if way in text} <= allowed.get(path.relative_to(ROOT).as_posix(), set())
