"""Archives that come from anywhere: read as a run where they are one, refused in one line where they are too much."""

from __future__ import annotations

import os
import random
import struct
import warnings
import zipfile
from contextlib import suppress
from pathlib import Path

import pytest

from ddlprof.base.errors import UserError
from ddlprof.store import archive, load_run
from ddlprof.store.archive import ZipFolder
from ddlprof.store.reader import runs_in
from tests.golden.runs import HERE, simple_run

RANK = "attempt-0/rank-0.jsonl"


def pack(path: Path, members: dict[str, bytes], kind: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", kind) as file:
        for name, content in members.items():
            file.writestr(name, content)
    return path


def members_of(run: Path) -> dict[str, bytes]:
    return {path.relative_to(run).as_posix(): path.read_bytes() for path in run.rglob("*") if path.is_file()}


@pytest.fixture
def run(tmp_path: Path) -> dict[str, bytes]:
    return members_of(simple_run(tmp_path / "run"))


def refusal(path: Path) -> str:
    with pytest.raises(UserError) as refused:
        load_run(path)
    assert "\n" not in str(refused.value)
    return str(refused.value).removeprefix(f"{path}: ")


@pytest.mark.parametrize("kind", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_an_archive_is_read_like_a_run_directory(kind: int, tmp_path: Path) -> None:
    path = pack(tmp_path / "run.ZIP", members_of(HERE / "two-ranks"), kind)
    found, own = load_run(path), load_run(HERE / "two-ranks")
    assert found.manifest == own.manifest
    assert [rank.steps.rows() for rank in found.ranks] == [rank.steps.rows() for rank in own.ranks]
    assert [len(rank.collectives) for rank in found.ranks] == [len(rank.collectives) for rank in own.ranks]
    assert runs_in([path]) == [[str(path)]]


def test_pieces_of_a_member(tmp_path: Path) -> None:
    content = bytes(range(256)) * 40
    folder = ZipFolder(pack(tmp_path / "x.zip", {RANK: content}))
    assert folder.piece(RANK, 0, 10) == content[:10]
    assert folder.piece(RANK, -7, 99) == content[-7:]
    assert folder.piece(RANK, -99_999, 99_999) == content
    assert folder.piece(RANK, 10_230, 99) == content[10_230:]
    assert folder.piece(RANK, 99_999, 9) == b""


def test_members_outside_are_neither_read_nor_written(run: dict[str, bytes], tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    others = {
        "../../manifest.json": b"{}",
        "/etc/passwd": b"x",
        "attempt-0/../rank-0.jsonl": b"x",
        "a/manifest.json": b"{}",
    }
    path = pack(here / "x.zip", {**run, **others})
    before = sorted(tmp_path.rglob("*"))
    assert len(load_run(path).ranks) == 1
    assert ZipFolder(path).others == list(others)
    assert sorted(tmp_path.rglob("*")) == before
    assert "no run in this archive" in refusal(pack(here / "y.zip", others))


def test_a_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = pack(tmp_path / "x.zip", {RANK: bytes(100 << 20)})
    assert path.stat().st_size < 1 << 20
    assert "would unpack to 100 MiB, more than is read of a file of its size" in refusal(path)
    monkeypatch.setattr(archive, "MAX_UNPACKED_BYTES", 1000)
    noise = random.Random(0).randbytes(2000)
    assert "would unpack to 0 MiB" in refusal(pack(tmp_path / "y.zip", {RANK: noise}))


def test_a_member_that_is_larger_than_it_says(tmp_path: Path) -> None:
    path = pack(tmp_path / "x.zip", {RANK: bytes(1 << 20)})
    content = path.read_bytes()
    path.write_bytes(content.replace(struct.pack("<I", 1 << 20), struct.pack("<I", 100)))
    assert "is damaged in the archive: Bad CRC-32" in refusal(path)
    path.write_bytes(content.replace(struct.pack("<I", 1 << 20), struct.pack("<I", 2 << 20)))
    assert "is shorter than the archive says" in refusal(path)


def test_many_members(run: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = pack(tmp_path / "x.zip", {**run, **{str(number): b"" for number in range(300)}})
    assert len(load_run(path).ranks) == 1
    monkeypatch.setattr(archive, "MAX_MEMBERS", 200)
    assert refusal(path) == "has 303 members; at most 200 are read"
    monkeypatch.setattr(archive, "MAX_LIST_BYTES", 1000)
    assert refusal(path) == "has more than 200 members or is larger than is read"


def test_a_long_list_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = pack(tmp_path / "x.zip", {f"{number}{'x' * 60}": b"" for number in range(21_000)})

    def never(*_: object) -> None:
        raise AssertionError("the list was read")

    monkeypatch.setattr(zipfile, "ZipFile", never)
    monkeypatch.setattr(archive, "MAX_LIST_BYTES", 1 << 20)
    assert refusal(path).startswith("has more than 20,000 members")


def test_a_member_twice(run: dict[str, bytes], tmp_path: Path) -> None:
    path = pack(tmp_path / "x.zip", run)
    with warnings.catch_warnings(), zipfile.ZipFile(path, "a") as file:
        warnings.simplefilter("ignore")
        file.writestr(RANK, "another")
    assert refusal(path) == "has a member twice"


def test_a_member_that_nobody_can_unpack(run: dict[str, bytes], tmp_path: Path) -> None:
    content = bytearray(pack(tmp_path / "x.zip", {RANK: run[RANK]}).read_bytes())
    encrypted = bytearray(content)
    for signature, at in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        encrypted[content.index(signature) + at] |= 1
    (tmp_path / "x.zip").write_bytes(encrypted)
    assert "is damaged in the archive: File" in refusal(tmp_path / "x.zip")
    unknown = bytearray(content)
    for signature, at in ((b"PK\3\4", 8), (b"PK\1\2", 10)):
        unknown[content.index(signature) + at] = 97
    (tmp_path / "x.zip").write_bytes(unknown)
    assert "is damaged in the archive: That compression method" in refusal(tmp_path / "x.zip")


@pytest.mark.parametrize("content", [b"", b"x" * 10_000, b"PK\5\6" + bytes(18), b"PK\3\4" * 99])
def test_what_is_no_archive(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.zip").write_bytes(content)
    assert refusal(tmp_path / "x.zip").startswith(("is no zip archive, or is damaged", "no run in this archive"))


def test_damage_anywhere_is_one_line_or_a_note(run: dict[str, bytes], tmp_path: Path) -> None:
    whole = pack(tmp_path / "x.zip", run).read_bytes()
    chosen = random.Random(7)
    for _ in range(150):
        content = bytearray(whole)
        for _ in range(chosen.randrange(1, 4)):
            content[chosen.randrange(len(content))] = chosen.randrange(256)
        (tmp_path / "x.zip").write_bytes(content[: chosen.choice([len(content), chosen.randrange(len(content))])])
        with suppress(UserError):  # anything else is a traceback for the user
            load_run(tmp_path / "x.zip")


@pytest.mark.skipif(os.name == "nt", reason="POSIX files")
def test_what_is_called_like_an_archive(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.zip")
    assert refusal(tmp_path / "fifo.zip").startswith("no such run directory")
    assert len(load_run(simple_run(tmp_path / "run.zip")).ranks) == 1  # a directory of that name
    assert refusal(tmp_path / "gone.zip").startswith("no such run directory")
