"""Names made harmless for a line that people read, and for a word that they type."""

from __future__ import annotations

import os
import subprocess
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlprof.base.text import plain, shell_word


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("host-7", "host-7"),
        ("Größe µ · ± 東京 é", "Größe µ · ± 東京 é"),
        ("a\nVerdict  COMPUTE", r"a\nVerdict  COMPUTE"),
        ("a\r\n\tb\x00\x7f", r"a\r\n\tb\x00\x7f"),
        ("\x1b]0;title\x07\x1b[31m", r"\x1b]0;title\x07\x1b[31m"),
        ("\x9b31m", r"\x9b31m"),
        ("a\u202egpj.exe\u2066", r"a\u202egpj.exe\u2066"),
        ("a\u200bb\ufeff\u2060c", r"a\u200bb\ufeff\u2060c"),
        ("\u2028\u2029\x85", r"\u2028\u2029\x85"),
        ("\xa0\u3000", r"\xa0\u3000"),
        ("\u3164\u115f\ufe0f\U000e0101", r"\u3164\u115f\ufe0f\U000e0101"),
        ("\udcff\ud800", r"\udcff\ud800"),
        ("\ue000\U000e0041", r"\ue000\U000e0041"),
    ],
)
def test_what_cannot_be_seen_is_an_escape(text: str, shown: str) -> None:
    assert plain(text) == shown


@given(st.text(st.characters(exclude_categories=())))
def test_nothing_invisible_is_left_and_a_second_time_changes_nothing(text: str) -> None:
    shown = plain(text)
    assert not {unicodedata.category(character) for character in shown} & {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
    shown.encode("utf-8")
    assert plain(shown) == shown


@pytest.mark.skipif(os.name == "nt", reason="POSIX shells")
@pytest.mark.parametrize(
    "name",
    [
        "run",
        "my run",
        "it's",
        'a"b',
        "$(date)",
        "a\nb",
        "\x1b]0;x\x07",
        "-x",
        "--out=x",
        "a\\b\n'c",
        "\u202ex1",
        "x\udcff",
    ],
)
def test_a_word_is_typed_as_it_is_meant(name: str) -> None:
    word = shell_word(name, path=True)
    assert plain(word) == word
    done = subprocess.run(["bash", "-c", f"printf %s {word}"], stdout=subprocess.PIPE, check=True)
    assert os.path.normpath(done.stdout.decode("utf-8", "surrogateescape")) == name
    assert not word.startswith("-")


def test_an_address_stays_as_it_is() -> None:
    assert shell_word("s3://bucket/run-1", path=True) == "s3://bucket/run-1"
