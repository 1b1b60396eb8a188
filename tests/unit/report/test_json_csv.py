"""What a spreadsheet would compute is a text for it; numbers are numbers."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest

from ddlprof.report.json_csv import cell


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("host", "host"),
        ("=1+1", "'=1+1"),
        ('=HYPERLINK("http://x","y")', '\'=HYPERLINK("http://x","y")'),
        ("+1", "'+1"),
        ("-1", "'-1"),
        ("@SUM(A1)", "'@SUM(A1)"),
        (" =1", "' =1"),
        ("\uff1d1", "'\uff1d1"),
        ("\t=1", r"\t=1"),
        ("\r=1", r"\r=1"),
        ("a\nb", r"a\nb"),
        ("\x1b[31m", r"\x1b[31m"),
        ("a-b=c", "a-b=c"),
        (-1, "-1"),
        (-0.5, "-0.5"),
        (True, "true"),
        (None, ""),
        ((4, 4), "4,4"),
        (("=1", "2"), "'=1,2"),
    ],
)
def test_a_cell(value: Any, written: str) -> None:
    text = io.StringIO()
    csv.writer(text).writerow([cell(value), "end"])
    assert next(csv.reader(io.StringIO(text.getvalue()))) == [written, "end"]
