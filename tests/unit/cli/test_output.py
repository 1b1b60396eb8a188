"""Files that commands write: whole or not at all, and never in place of what is no file."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddlprof.base.errors import UserError
from ddlprof.cli.output import require_destination, wanted, write_pieces


@pytest.fixture
def old(tmp_path: Path) -> Path:
    path = tmp_path / "old.json"
    path.write_text("old")
    return path


def test_what_breaks_off_leaves_the_old_one(old: Path) -> None:
    def pieces() -> Iterator[str]:
        yield "new"
        raise KeyError

    with pytest.raises(KeyError):
        write_pieces(old, pieces())
    assert [path.read_text() for path in old.parent.iterdir()] == ["old"]


def test_a_link_stays_one(old: Path) -> None:
    link = old.with_name("link.json")
    link.symlink_to(old.name)
    write_pieces(link, ["new"])
    assert link.is_symlink()
    assert old.read_text() == "new"


def test_compressed_by_its_name(tmp_path: Path) -> None:
    write_pieces(tmp_path / "x.json.gz", ["text"])
    assert gzip.decompress((tmp_path / "x.json.gz").read_bytes()) == b"text"


def test_stdout_that_is_a_file_is_written_to(tmp_path: Path) -> None:
    program = (
        "from pathlib import Path; from ddlprof.cli.output import write_pieces;"
        " write_pieces(Path('/dev/stdout'), ['text']); print()"
    )
    with (tmp_path / "out").open("ab") as out:
        subprocess.run([sys.executable, "-c", program], stdout=out, check=True)
    assert (tmp_path / "out").read_text() == "text\n"


def test_a_file_in_a_folder_that_takes_no_new_ones(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere
    write_pieces(old, ["new"])
    assert old.read_text() == "new"


@pytest.mark.parametrize(
    ("place", "why"),
    [("", "Is a directory"), ("no/x", "No such file or directory"), ("old.json/x", "Not a directory")],
)
def test_what_cannot_be_written_is_one_line(old: Path, place: str, why: str) -> None:
    path = old.parent / place
    with pytest.raises(UserError) as caught:
        write_pieces(path, ["new"])
    assert str(caught.value) == f"{path}: cannot be written: {why}"


@pytest.mark.parametrize(("place", "why"), [("", "it is a folder"), ("no/x", "there is no folder {}/no")])
def test_that_is_known_before(old: Path, place: str, why: str) -> None:
    path = old.parent / place
    with pytest.raises(UserError) as caught:
        require_destination(path)
    assert str(caught.value) == f"{path}: cannot be written: {why.format(old.parent)}"


def test_most_places_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for path in (None, Path("x.json"), tmp_path / "x.json", Path(os.devnull)):
        require_destination(path)


@pytest.mark.parametrize(
    ("name", "format"),
    [
        ("a.JSON", "json"),
        ("a.json.gz", "json"),
        ("a.htm", "html"),
        ("a.txt", "table"),
        ("a.trace.json", "trace"),
        ("a.b.trace.json.gz", "trace"),
        ("a.sh", "slurm"),
        ("a.table.json", "json"),  # a format of all commands is told by the last part alone
        ("trace.json", "json"),
        ("a.plan.json", "json"),  # a format of another command's
    ],
)
def test_a_format_is_told_by_the_name(name: str, format: str) -> None:
    known = ("table", "json", "html", "trace", "slurm")
    (destination,) = wanted([name], None, known, endings={".sh": "slurm"}).destinations
    assert destination.format == format
    assert str(destination.path) == name
