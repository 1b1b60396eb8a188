from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddlprof.base.reading import ReadingError, parse_json, read_bytes, read_text


def refused(call: Callable[[], Any]) -> str:
    with pytest.raises(ReadingError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 300
    return message


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"\xef\xbb\xbf{}")
    assert read_text(path, 100) == "{}"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: os.mkfifo(path), "is a FIFO, not a regular file"),
        (lambda path: path.mkdir(), "is a directory, not a regular file"),
        (lambda path: path.symlink_to("/dev/zero"), "is a device, not a regular file"),
        (lambda path: path.symlink_to(path), "cannot be read: Too many levels of symbolic links"),
        (lambda path: None, "cannot be read: No such file or directory"),
    ],
    ids=["FIFO", "directory", "device", "circle of links", "nothing"],
)
def test_only_regular_files_are_read_and_nothing_is_waited_for(
    make: Callable[[Path], None], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "odd"
    make(path)
    assert refused(lambda: read_bytes(path, 100)) == message


def test_a_socket_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the names of sockets are short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        assert "not a regular file" in refused(lambda: read_bytes("socket", 100))


def test_the_name_itself_may_be_impossible() -> None:
    assert refused(lambda: read_bytes("a\0b", 100)).startswith("cannot be read: ")
    assert refused(lambda: read_bytes("a" * 1000, 100)) == "cannot be read: File name too long"


def test_a_file_over_the_limit_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(2**40)  # without a byte on the disk
    assert refused(lambda: read_bytes(path, 4 * 2**20)) == "has 1024 GiB; at most 4 MiB are read"


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_a_file_that_does_not_tell_its_size_is_read_up_to_the_limit() -> None:
    assert (
        refused(lambda: read_bytes("/proc/self/status", 8)) == "has more than 8 bytes, which is the most that is read"
    )


def test_what_is_no_text_names_its_line(tmp_path: Path) -> None:
    path = tmp_path / "binary"
    path.write_bytes(b"one\ntwo \xff\n")
    assert refused(lambda: read_text(path, 100)) == "line 2: not UTF-8 text"


def test_json_is_read() -> None:
    assert parse_json(b'{"a": [1, -2.5e3, null, true, "\\ud83d\\ude00 \xc3\xa9"]}') == {
        "a": [1, -2500.0, None, True, "😀 é"]
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON: Expecting value, line 1 column 1"),
        ("{", "not JSON: Expecting property name enclosed in double quotes, line 1 column 2"),
        ("{} {}", "not JSON: Extra data, line 1 column 4"),
        ("[NaN]", "NaN is no number"),
        ("-Infinity", "-Infinity is no number"),
        ("1e999", "the number 1e999 is too large"),
        ("1" * 400, "a number of 400 digits; at most 64 are read"),
        ("0." + "1" * 400, "a number of 402 digits; at most 64 are read"),
        ("[" * 100_000, "not read: lists and objects are nested more than 32 deep"),
        ('{"a":' * 100_000, "not read: lists and objects are nested more than 32 deep"),
        ("[" * 40 + "]" * 40, "not read: lists and objects are nested more than 32 deep"),
        ('"\\ud800"', "not JSON: a text has half a character (a lone surrogate)"),
        ('{"\\uDFFF": 1}', "not JSON: a text has half a character (a lone surrogate)"),
        ('"\ud800"', "not JSON: a text has half a character (a lone surrogate)"),
        ('{"a": 1, "b": {"c": 1, "c": 1}}', "'c' is there twice in one object"),
        ('"\n"', "not JSON: Invalid control character at, line 1 column 2"),
    ],
)  # fmt: skip
def test_what_is_no_json_of_ours_is_one_line(text: str, message: str) -> None:
    assert refused(lambda: parse_json(text)) == message


def test_json_that_is_no_text() -> None:
    assert refused(lambda: parse_json(b'{"a": "\xff"}')) == "line 1: not UTF-8 text"


def test_no_less_deep_than_it_says() -> None:
    assert parse_json("[" * 32 + "]" * 32)
