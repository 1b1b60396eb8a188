"""A hang in words: the sentence of each finding, the card, and the part of the page."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from ddlprof.analysis import hang_facts
from ddlprof.analysis.hang_facts import CollectivePosition, Hang, HangRank
from ddlprof.analysis.hang_words import advice, headline, label
from ddlprof.report.hang.card import card
from ddlprof.report.hang.html import section
from ddlprof.report.html.element import joined

PLACE = CollectivePosition("0", "data", (0, 1, 2), 41, "allreduce", 16640)
LINES = [
    HangRank(0, "collective", "train.py:14 main", "backward", PLACE, 70.0, "", ("torch/_tensor.py:1 backward",)),
    HangRank(1, "script", "train.py:18 main", "acquire", None, 70.0, "", ("train.py:18 main", "<b>.py:1 evil\x1b[2J")),
    HangRank(2, "failed", "", "", None, 70.0, "x" * 500),
]
FOUND = Hang("missing", True, [1], [0], PLACE, "train.py:18 main", 40, 71.0, "detail", LINES)
KINDS = sorted(
    value for name, value in vars(hang_facts).items() if name.isupper() and isinstance(value, str) and value.islower()
)


@pytest.mark.parametrize("kind", KINDS)
def test_every_finding_names_its_rank_and_says_what_to_do(kind: str) -> None:
    found = replace(FOUND, kind=kind)
    assert "rank 1" in headline(found)
    assert advice(found)
    assert "None" not in headline(replace(found, collective=None, place="", detail=""))


def test_the_sentence_of_a_missing_rank() -> None:
    assert headline(FOUND) == (
        "rank 1 is missing at train.py:18 main; rank 0 waits in allreduce #41 of group 0 (data, 16,640 bytes)"
    )


def test_the_card_begins_with_the_cause() -> None:
    lines = card(FOUND).splitlines()
    assert lines[0] == f"HANG: {headline(FOUND)}"
    ranks = [line for line in lines if re.match(r"rank \d", line)]
    assert [line[:6] for line in ranks] == ["rank 1", "rank 0", "rank 2"]
    assert max(map(len, lines)) < 200
    assert "\x1b" not in card(FOUND)


def test_waiting_and_failing_are_no_hang() -> None:
    assert label(replace(FOUND, is_hang=False, kind=hang_facts.BUSY)) == "Waiting"
    assert label(replace(FOUND, is_hang=False, kind=hang_facts.FAILED)) == "Failed"
    assert card(replace(FOUND, is_hang=False, kind=hang_facts.BUSY)).startswith("no hang: rank 1 is at work")


def test_the_page_has_every_rank_and_no_markup_of_a_name() -> None:
    made = section(FOUND)
    text = str(joined(made.body))
    assert made.title == "Hang"
    assert "train.py:18 main" in text
    assert "&lt;b&gt;.py" in text
    assert "<b>.py" not in text
