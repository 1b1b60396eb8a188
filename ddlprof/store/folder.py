"""Where the files of a run are: a folder of this machine, or whatever fsspec can list and read. Never written to.

Only the names of the run's files are looked at, so a large bucket costs no more than its listing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from ddlprof.model.errors import UserError

DEPTH = 3  # COPY/attempt-N/rank-R.jsonl
_PATTERNS = ("manifest.json", "attempt-*/rank-*")
_FETCHED_TOGETHER = 64  # files: enough to hide the latency of an object store, not enough to fill the memory
_PROTOCOLS_OF_REMOTE = ("s3", "s3a", "memory", "file", "local")  # what `pip install 'ddlprof[remote]'` brings


class Folder(Protocol):
    """A folder that can be listed and read."""

    def files(self) -> dict[str, int]:
        """The size of every file that may belong to a run, by its path in the folder."""

    def contents(self, names: Sequence[str]) -> Iterator[bytes]:
        """The contents of these files, in this order."""

    def missing(self) -> str:
        """Why there is no run here."""


def open_folder(path: str | Path) -> Folder:
    """Raises UserError where a URL cannot be opened."""
    return RemoteFolder(path) if isinstance(path, str) and "://" in path else LocalFolder(Path(path))


class LocalFolder:
    """A folder of this machine's file systems."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def files(self) -> dict[str, int]:
        """Its own run's files; if there are none, those of the runs in it."""
        for prefix in ("", "*/"):
            found = [path for pattern in _PATTERNS for path in self._path.glob(prefix + pattern)]
            if found:
                return {path.relative_to(self._path).as_posix(): path.stat().st_size for path in found}
        return {}

    def contents(self, names: Sequence[str]) -> Iterator[bytes]:
        """One at a time."""
        return ((self._path / name).read_bytes() for name in names)

    def missing(self) -> str:
        """Why there is no run here."""
        if self._path.is_file():
            return "is a file, not a run directory"
        if self._path.is_dir():
            return "not a run directory (neither manifest.json nor attempt-*/rank-*.jsonl in it)"
        return "no such run directory"


class RemoteFolder:
    """A folder behind a URL of fsspec's: s3://, memory://, ... Its drivers raise whatever they like."""

    def __init__(self, url: str) -> None:
        self._url = url
        try:
            import fsspec
        except ImportError:
            raise UserError(f"{url}: reading URLs needs fsspec: pip install 'ddlprof[remote]'") from None
        protocol = url.partition("://")[0]
        try:
            self._system, self._root = fsspec.url_to_fs(url)
        except ImportError as error:
            driver = "'ddlprof[remote]'" if protocol in _PROTOCOLS_OF_REMOTE else "its fsspec driver"
            raise UserError(f"{url}: {_one_line(error)}: pip install {driver}") from None
        except Exception as error:
            raise self._unreadable(error) from None

    def files(self) -> dict[str, int]:
        """As `LocalFolder.files`."""
        try:
            found: dict[str, Any] = self._system.find(self._root, maxdepth=DEPTH, detail=True)
        except Exception as error:
            raise self._unreadable(error) from None
        return {path[len(self._root) :].lstrip("/"): int(info["size"] or 0) for path, info in found.items()}

    def contents(self, names: Sequence[str]) -> Iterator[bytes]:
        """Several are fetched at a time."""
        paths = [f"{self._root.rstrip('/')}/{name}" for name in names]
        for begin in range(0, len(paths), _FETCHED_TOGETHER):
            together = paths[begin : begin + _FETCHED_TOGETHER]
            try:
                fetched: dict[str, bytes] = self._system.cat(together)
            except Exception as error:
                raise self._unreadable(error) from None
            for path in together:
                yield fetched.pop(path)

    def missing(self) -> str:
        """Why there is no run here."""
        return "no run there (neither manifest.json nor attempt-*/rank-*.jsonl)"

    def _unreadable(self, error: Exception) -> UserError:
        return UserError(f"{self._url}: cannot be read: {_one_line(error)}")


def _one_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__
