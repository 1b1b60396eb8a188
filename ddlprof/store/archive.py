"""Reads a run in one file (a zip archive, as `ddlprof share` writes it) as if it were a run directory.

Nothing is unpacked to the disk. As an archive may come from anybody, the number of its members and their total size are
checked before anything of it is read.
"""

from __future__ import annotations

import os
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import IO

from ddlprof.base.errors import UserError
from ddlprof.base.reading import ReadingError
from ddlprof.model.manifest import MANIFEST_NAME, OPERATORS_NAME

SUFFIX = ".zip"
MAX_MEMBERS = 20_000
"""The most members: two files for each of 10,000 ranks."""
MAX_LIST_BYTES = 4 << 20
"""The most bytes of the list of members at the end of the file: 200 for each member."""
MAX_UNPACKED_BYTES = 2 << 30
"""The most that all members are unpacked to."""
MAX_RATIO = 50
"""The most that unpacking may enlarge the file beyond `SMALL_BYTES`; steps shrink to about a tenth."""
SMALL_BYTES = 16 << 20
_NUMBER = "(?:0|[1-9][0-9]{0,8})"
_MEMBER = re.compile(
    rf"{re.escape(MANIFEST_NAME)}|{re.escape(OPERATORS_NAME)}|attempt-{_NUMBER}/rank-{_NUMBER}\.(?:jsonl|steps|collectives)"
)
_DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    NotImplementedError,
    RuntimeError,
    ValueError,
    OSError,
    struct.error,
)
"""The errors of Python's zipfile for files that are no archives, are damaged, or use an unknown compression."""
_END, _END_BYTES, _MAX_COMMENT_BYTES = b"PK\5\6", 22, 65_535
_ZIP64 = b"PK\6\7"


def is_archive(path: Path) -> bool:
    """Whether a path names a regular file to be read as an archive."""
    try:
        return path.suffix.lower() == SUFFIX and stat.S_ISREG(path.stat().st_mode)
    except (OSError, ValueError):
        return False


class ZipFolder:
    """The run in an archive, with the interface of `ddlprof.store.folder.Folder`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def files(self) -> dict[str, int]:
        """The sizes of the members that belong to a run. Raises UserError if the file is no archive, or too large."""
        return {name: info.file_size for name, info in self._members.items()}

    def contents(self, names: Sequence[str]) -> Iterator[bytes | ReadingError]:
        """The contents of these members, one at a time."""
        return (self.piece(name, 0, MAX_UNPACKED_BYTES) for name in names)

    def piece(self, name: str, begin: int, most_bytes: int) -> bytes | ReadingError:
        """At most `most_bytes` of a member from `begin` on; a negative `begin` counts from its end."""
        info = self._members[name]
        first = begin if begin >= 0 else max(info.file_size + begin, 0)
        try:
            with zipfile.ZipFile(self._path) as archive, archive.open(info) as file:
                _skip(file, first)
                content = file.read(max(min(most_bytes, info.file_size - first), 0))
                if first + len(content) == info.file_size:
                    file.read(1)  # reading past the end compares the checksum
        except _DAMAGE as error:
            return ReadingError(f"is damaged in the archive: {error}")
        if len(content) < min(most_bytes, info.file_size - first):
            return ReadingError("is shorter than the archive says")
        return content

    def missing(self) -> str:
        """Why there is no run here."""
        return "no run in this archive (neither manifest.json nor attempt-*/rank-*.jsonl)"

    @property
    def others(self) -> list[str]:
        """Names of members that do not belong to a run."""
        return self._all[1]

    @property
    def _members(self) -> dict[str, zipfile.ZipInfo]:
        return self._all[0]

    @cached_property
    def _all(self) -> tuple[dict[str, zipfile.ZipInfo], list[str]]:
        try:
            size = os.path.getsize(self._path)
            with self._path.open("rb") as file:
                self._require_short_list(file, size)
            with zipfile.ZipFile(self._path) as archive:
                infos = archive.infolist()
        except _DAMAGE as error:
            if isinstance(error, PermissionError):
                raise self._refused(f"cannot be read: {error.strerror}") from None
            raise self._refused("is no zip archive, or is damaged") from None
        known = [info for info in infos if _MEMBER.fullmatch(info.filename)]
        members = {info.filename: info for info in known}
        unpacked = sum(info.file_size for info in infos)
        if len(infos) > MAX_MEMBERS:
            raise self._refused(f"has {len(infos):,} members; at most {MAX_MEMBERS:,} are read")
        if len(members) < len(known):
            raise self._refused("has a member twice")
        if unpacked > MAX_UNPACKED_BYTES or unpacked > max(SMALL_BYTES, MAX_RATIO * size):
            raise self._refused(f"would unpack to {unpacked / 2**20:,.0f} MiB, more than is read of a file of its size")
        return members, [info.filename for info in infos if info.filename not in members]

    def _require_short_list(self, file: IO[bytes], size: int) -> None:
        """Checks the size of the list of members, which zipfile would read as a whole."""
        file.seek(max(size - _END_BYTES - _MAX_COMMENT_BYTES - 20, 0))
        tail = file.read()
        at = tail.rfind(_END)
        if at < 0 or len(tail) < at + _END_BYTES:
            raise zipfile.BadZipFile
        (list_bytes,) = struct.unpack_from("<I", tail, at + 12)
        if list_bytes > MAX_LIST_BYTES or _ZIP64 in tail[max(at - 20, 0) : at]:
            raise self._refused(f"has more than {MAX_MEMBERS:,} members or is larger than is read")

    def _refused(self, why: str) -> UserError:
        return UserError(f"{self._path}: {why}")


def _skip(file: IO[bytes], count: int) -> None:
    while count > 0 and (piece := file.read(min(count, 1 << 20))):
        count -= len(piece)
