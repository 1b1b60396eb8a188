"""What logs people in disappears from URLs; everything else of a text stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ddlprof.base.errors import UserError
from ddlprof.base.text import without_credentials
from ddlprof.cli.app import main
from ddlprof.model.naming import on_this_machine


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://KEY:secret@bucket/run: cannot be read", "s3://***@bucket/run: cannot be read"),
        ("https://secret@host/run", "https://***@host/run"),
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
