"""Where the files of a run are: a folder of this machine, or anything that fsspec can list and read. Read only.

Object stores are opened by `object_store` and are then used like any file system of fsspec.

Only names of a run's files are looked for, so a large bucket costs no more than its listing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from ddlprof.base.errors import UserError
from ddlprof.base.reading import ReadingError, read_bytes, read_piece
from ddlprof.model.manifest import OPERATORS_NAME

MAX_FILE_BYTES = 2 << 30
"""The largest file. A rank writes a few hundred megabytes in months."""
DEPTH = 3  # COPY/attempt-N/rank-R.jsonl
_PATTERNS = ("manifest.json", "attempt-*/rank-*")
_BESIDE = (OPERATORS_NAME,)
"""Files that belong to a run if a file that matches one of `_PATTERNS` is in the same folder."""
_FETCHED_TOGETHER = 16  # files: hides the latency of an object store without filling the memory


class Folder(Protocol):
    """A folder that can be listed and read."""

    def files(self) -> dict[str, int]:
        """The size of every file that may belong to a run, by its path in the folder."""

    def contents(self, names: Sequence[str]) -> Iterator[bytes | ReadingError]:
        """The contents of these files in this order; for a file that cannot be read, the error."""

    def piece(self, name: str, begin: int, most_bytes: int) -> bytes | ReadingError:
        """At most `most_bytes` of a file from `begin` on; a negative `begin` counts from its end."""

    def missing(self) -> str:
        """Why there is no run here."""


def open_folder(path: str | Path) -> Folder:
    """Opens a folder, an archive or a URL. Raises UserError if a URL cannot be opened."""
    if isinstance(path, str) and "://" in path:
        return RemoteFolder(path)
    if Path(path).is_dir():
        return LocalFolder(Path(path))
    from ddlprof.store.archive import ZipFolder, is_archive

    return ZipFolder(Path(path)) if is_archive(Path(path)) else LocalFolder(Path(path))


class LocalFolder:
    """A folder of this machine's file systems."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def files(self) -> dict[str, int]:
        """The files of the run in this folder; if there is none, those of the runs in its subfolders."""
        for prefix in ("", "*/"):
            found = [path for pattern in _PATTERNS for path in self._path.glob(prefix + pattern)]
            if found:
                found += [path for pattern in _BESIDE for path in self._path.glob(prefix + pattern)]
                return {path.relative_to(self._path).as_posix(): _size(path) for path in found}
        return {}

    def contents(self, names: Sequence[str]) -> Iterator[bytes | ReadingError]:
        """The contents, read one at a time."""
        return (_content(self._path / name) for name in names)

    def piece(self, name: str, begin: int, most_bytes: int) -> bytes | ReadingError:
        """A part of a file."""
        try:
            return read_piece(self._path / name, begin, most_bytes)
        except ReadingError as error:
            return error

    def missing(self) -> str:
        """Why there is no run here."""
        if self._path.is_file():
            return "is a file, not a run directory"
        if self._path.is_dir():
            if not os.access(self._path, os.R_OK | os.X_OK):
                return "cannot be read: Permission denied"
            return "not a run directory (neither manifest.json nor attempt-*/rank-*.jsonl in it)"
        return "no such run directory"


class RemoteFolder:
    """A folder behind a URL of fsspec: s3://, memory://, ... Its drivers may raise any error."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._system, self._root = _open(url)
        self._sizes: dict[str, int] = {}

    def files(self, depth: int = DEPTH) -> dict[str, int]:
        """Like `LocalFolder.files`, but may include files that belong to no run."""
        try:
            found: dict[str, Any] = self._system.find(self._root, maxdepth=depth, detail=True, on_error="raise")
        except FileNotFoundError:
            return {}
        except Exception as error:
            raise _unreadable(self._url, error) from None
        self._sizes = {path: int(info["size"] or 0) for path, info in found.items()}
        return {path[len(self._root) :].lstrip("/"): size for path, size in self._sizes.items()}

    def contents(self, names: Sequence[str]) -> Iterator[bytes | ReadingError]:
        """The contents, several of them fetched at a time."""
        paths = [f"{self._root.rstrip('/')}/{name}" for name in names]
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(_FETCHED_TOGETHER) as pool:
            for begin in range(0, len(paths), _FETCHED_TOGETHER):
                together = pool.map(self._content, paths[begin : begin + _FETCHED_TOGETHER])
                try:
                    fetched = list(together)
                except Exception as error:
                    raise _unreadable(self._url, error) from None
                while fetched:
                    yield fetched.pop(0)

    def piece(self, name: str, begin: int, most_bytes: int) -> bytes | ReadingError:
        """A part of a file."""
        path = f"{self._root.rstrip('/')}/{name}"
        size = self._sizes.get(path, 0)
        first = begin if begin >= 0 else max(size + begin, 0)
        if not first < size:
            return b""
        try:
            found: bytes = self._system.cat_file(path, start=first, end=min(first + most_bytes, size))
        except Exception as error:
            raise _unreadable(self._url, error) from None
        return found

    def _content(self, path: str) -> bytes | ReadingError:
        if self._sizes.get(path, 0) > MAX_FILE_BYTES:
            return ReadingError("is too large to be read")
        content: bytes = self._system.cat_file(path)
        return content

    def missing(self) -> str:
        """Why there is no run here."""
        return "no run there (neither manifest.json nor attempt-*/rank-*.jsonl)"


def _content(path: Path) -> bytes | ReadingError:
    try:
        return read_bytes(path, MAX_FILE_BYTES)
    except ReadingError as error:
        return error


def _size(path: Path) -> int:
    """The size of a file; 0 if unknown, which is reported when the file is read."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _open(url: str) -> tuple[Any, str]:
    """The file system of a URL, and the path in it."""
    from ddlprof.store import object_store

    protocol = url.partition("://")[0]
    if object_store.is_object_store(protocol):
        return object_store.open_store(url)
    try:
        import fsspec
    except ImportError:
        raise UserError(f"{url}: reading URLs needs fsspec: pip install 'ddlprof[remote]'") from None
    try:
        system, root = fsspec.url_to_fs(url)
    except ImportError as error:
        raise UserError(f"{url}: {object_store.reason(error)}: pip install its fsspec driver") from None
    except Exception as error:
        raise _unreadable(url, error) from None
    return system, root


def _unreadable(url: str, error: Exception) -> UserError:
    from ddlprof.store import object_store

    return UserError(f"{url}: cannot be read: {object_store.reason(error)}")
