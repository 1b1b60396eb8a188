"""Names made harmless for a line that people read; and URLs without what logs people in."""

from __future__ import annotations

import os
import subprocess
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlprof.base.errors import UserError
from ddlprof.base.text import plain, shell_word, without_credentials
from ddlprof.cli.app import main
from ddlprof.model.naming import on_this_machine


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


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://KEY:secret@bucket/run: cannot be read", "s3://***@bucket/run: cannot be read"),
        ("https://secret@host/run", "https://***@host/run"),
        ("//me:secret@host/share: cannot be read", "//***@host/share: cannot be read"),
        ("//nas/share and a // b", "//nas/share and a // b"),
        ("https://me:a/secret@host/run", "https://***@host/run"),
        ("ftp://me:p@secret@host:21/run", "ftp://***@host:21/run"),
        ("https://host/run?sig=secret&part=1: cannot be read", "https://host/run?***: cannot be read"),
        ("'https://host/run#access_token=secret'", "'https://host/run?***'"),
        (
            "of two jobs: s3://a:secret@b/c and s3://d:secret@e/f?g=secret",
            "of two jobs: s3://***@b/c and s3://***@e/f?***",
        ),
        ("https:/me:secret@host/run", "https:/***@host/run"),
        ("abfss://me:secret@account.dfs.core.windows.net/run", "abfss://***@account.dfs.core.windows.net/run"),
        ("abfss://container@account.dfs.core.windows.net/run", "abfss://container@account.dfs.core.windows.net/run"),
        ("s3://bucket/run: cannot be read: ask me@example.org", "s3://bucket/run: cannot be read: ask me@example.org"),
        ("http://10.0.0.1:2379/x and C:/data/a@b", "http://10.0.0.1:2379/x and C:/data/a@b"),
        ("runs/a@b?c#d", "runs/a@b?c#d"),
    ],
)
def test_credentials_disappear_and_nothing_else(text: str, shown: str) -> None:
    assert without_credentials(text) == shown
    assert without_credentials(shown) == shown
    assert str(UserError(text)) == shown


@pytest.mark.parametrize(
    "words",
    [
        ["report", "s3://me:secret@bucket/run"],
        ["report", "gs://me:secret@bucket/run"],
        ["fleet", "nothing://me:secret@host/run"],
        ["watch", "--once", "nothing://host/run?token=secret"],
        ["import", "https://me:secret@host/trace.json", "--out", "run"],
        ["predict", "https://me:secret@host/run", "--instance", "x"],
        ["run", "--out", "s3://me:secret@bucket/run", "train.py"],
        ["report", "run", "--format", "https://me:secret@host/"],
    ],
)
def test_no_error_of_a_command_shows_them(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["ddlprof", *words])
    assert main() == 2
    error = capsys.readouterr().err
    assert "secret" not in error
    assert "***" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        ["run", "--out", "s3://bucket/run", "train.py"],
        ["characterize", "--out", "gs://bucket/run", "train.py"],
        ["import", "trace.json", "--out", "s3://bucket/run"],
        ["export", "run", "--out", "hdfs://host/run"],
    ],
)
def test_nothing_is_written_to_a_folder_named_like_a_url(
    words: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["ddlprof", *words])
    assert main() == 2
    assert "is a URL: name a directory of this machine" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_directories_are_directories() -> None:
    places: list[Any] = ["runs/a", "/runs/a:b", "C:/runs", None, Path("a")]
    for place in places:
        assert on_this_machine(place) is place
