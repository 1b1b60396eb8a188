"""Files that are written whole or not at all, through names that nobody can guess."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ddlprof.base import files
from ddlprof.base.files import replace_whole, replacing, replacing_all


def test_it_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    for text in ("old", "new"):
        replace_whole(path, text)
        assert path.read_text() == text
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(os.name == "nt", reason="POSIX access rights")
def test_everybody_may_do_with_it_what_the_umask_says(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        replace_whole(tmp_path / "a", "")
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640


def test_a_failure_leaves_everything_as_it_was(tmp_path: Path) -> None:
    one, two = paths = [tmp_path / "one", tmp_path / "two"]
    one.write_text("old")

    def fail() -> None:
        with replacing_all(paths) as temporary:
            temporary[0].write_text("new")
            temporary[1].write_text("new")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert list(tmp_path.iterdir()) == [one]
    assert one.read_text() == "old"
    with replacing_all(paths) as temporary:
        for each in temporary:
            each.write_text("new")
    assert {path.read_text() for path in paths} == {"new"}
    assert sorted(tmp_path.iterdir()) == [one, two]


def test_no_name_is_used_twice(tmp_path: Path) -> None:
    with replacing(tmp_path / "a") as one, replacing(tmp_path / "a") as two:
        assert one != two
        assert str(os.getpid()) != one.name.split(".")[-2]


@pytest.mark.skipif(os.name == "nt", reason="links")
@pytest.mark.parametrize("target", ["precious", "nothing"])
def test_a_link_at_the_temporary_name_is_not_followed(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even by somebody who has guessed it."""
    monkeypatch.setattr(os, "urandom", bytes)
    precious, out = tmp_path / "precious", tmp_path / "out"
    precious.write_text("precious")
    out.mkdir()
    link = files.temporary_beside(out / "report.json")
    link.symlink_to(tmp_path / target)
    with pytest.raises(FileExistsError):
        replace_whole(out / "report.json", "ours")
    assert precious.read_text() == "precious"
    assert not (tmp_path / "nothing").exists()
    assert list(out.iterdir()) == [link]  # it is not ours to remove


@pytest.mark.skipif(os.name == "nt", reason="links")
def test_a_link_in_its_place_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "a").symlink_to(tmp_path / "precious")
    replace_whole(tmp_path / "a", "ours")
    assert (tmp_path / "precious").read_text() == "precious"
    assert not (tmp_path / "a").is_symlink()
