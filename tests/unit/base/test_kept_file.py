"""Files of ours in a process that closes every descriptor and opens files of its own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from ddlprof.base.kept_file import KeptFile, KernelFile

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX descriptors")

APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL


def number_of(file: KeptFile | KernelFile) -> int:
    assert file._descriptor is not None
    return file._descriptor


def take(number: int, path: Path) -> None:
    """What the worst script does: puts a file of its own there."""
    mine = os.open(path, os.O_RDWR | os.O_CREAT)
    os.dup2(mine, number)
    os.close(mine)


@pytest.fixture
def ours(tmp_path: Path) -> KeptFile:
    file = KeptFile(str(tmp_path / "ours"), APPEND)
    file.append(b"one\n")
    return file


def test_open_does_not_get_our_number(ours: KeptFile, tmp_path: Path) -> None:
    number = number_of(ours)
    assert number >= 100
    os.close(number)
    with (tmp_path / "theirs").open("w") as theirs:
        assert theirs.fileno() < 100
        ours.append(b"two\n")
    assert (tmp_path / "ours").read_text() == "one\ntwo\n"
    assert (tmp_path / "theirs").read_text() == ""
    ours.close()


def test_a_number_that_was_taken_is_neither_written_nor_closed(ours: KeptFile, tmp_path: Path) -> None:
    number = number_of(ours)
    take(number, tmp_path / "theirs")
    ours.append(b"two\n")
    assert (tmp_path / "ours").read_text() == "one\ntwo\n"
    take(number_of(ours), tmp_path / "theirs")
    ours.close()
    os.write(number, b"still open")
    assert (tmp_path / "theirs").read_text() == "still open"
    os.close(number)


def test_another_file_at_our_path_is_not_written(ours: KeptFile, tmp_path: Path) -> None:
    os.close(number_of(ours))
    (tmp_path / "ours").rename(tmp_path / "moved")
    (tmp_path / "ours").write_text("theirs")
    with pytest.raises(OSError, match="was replaced"):
        ours.append(b"two\n")
    assert (tmp_path / "ours").read_text() == "theirs"
    ours.close()


def test_closed_is_closed(ours: KeptFile) -> None:
    number = number_of(ours)
    ours.close()
    ours.close()
    with pytest.raises(OSError, match="closed"):
        ours.append(b"two\n")
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(number)


def test_no_descriptor_is_left_behind(tmp_path: Path) -> None:
    before = os.listdir("/dev/fd")
    file = KeptFile(str(tmp_path / "ours"), APPEND)
    assert len(os.listdir("/dev/fd")) == len(before) + 1
    del file
    assert os.listdir("/dev/fd") == before


def test_with_few_descriptors(tmp_path: Path) -> None:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = {int(number) for number in os.listdir("/dev/fd")}
    free = [number for number in range(len(taken) + 20) if number not in taken]
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[19] + 1, hard))
    try:
        files = [KeptFile(str(tmp_path / str(index)), APPEND) for index in range(12)]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    for file in files:
        file.append(b"one\n")
        file.close()


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's /proc")
def test_figures_of_the_kernel(tmp_path: Path) -> None:
    file = KernelFile("/proc/self/stat")
    head = f"{os.getpid()} (".encode()
    os.close(number_of(file))
    assert file.read(64).startswith(head)
    (tmp_path / "theirs").write_text("1 (")
    number = number_of(file)
    take(number, tmp_path / "theirs")
    assert file.read(64) == b"1 ("  # nothing looks wrong yet
    file.doubt()
    assert file.read(64).startswith(head)
    file.doubt()
    assert file.read(64).startswith(head)
    file.close()
    assert os.pread(number, 64, 0) == b"1 ("
    os.close(number)
