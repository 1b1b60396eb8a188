"""Finds all run directories under a folder or URL by names and sizes alone, and reads small parts of their files.

A folder may contain anything: links that lead back, folders that cannot be listed or are endless. The search is
bounded, continues after what it cannot read, and tells what it left out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from ddlprof.base.errors import UserError
from ddlprof.base.reading import ReadingError
from ddlprof.model.manifest import MANIFEST_NAME
from ddlprof.model.run_summary import SUMMARY_NAME
from ddlprof.store.folder import Folder, LocalFolder, RemoteFolder, open_folder

MAX_DEPTH = 12
"""The deepest folders that are searched, counted from the one that was named."""
MAX_ENTRIES = 5_000_000
"""The most names that are read."""
_TOGETHER = 16  # requests to an object store, enough to hide its latency
_ATTEMPT = re.compile(r"attempt-(?:0|[1-9][0-9]{0,8})")
_RANK = re.compile(r"rank-(?:0|[1-9][0-9]{0,8})\.(?:jsonl|steps|collectives)")
_FILES = "|".join((re.escape(MANIFEST_NAME), re.escape(SUMMARY_NAME), f"{_ATTEMPT.pattern}/{_RANK.pattern}"))
_OF_A_RUN = re.compile(rf"(?:(?P<run>.+)/)?(?P<file>{_FILES})")


@dataclass(frozen=True)
class FoundRun:
    """A directory that looks like a run's. Holds the sizes of its files by name."""

    path: str
    """The directory as the user would type it."""
    prefix: str
    """Its path in the folder that was searched: empty, or ending with a slash."""
    files: dict[str, int]

    @property
    def rank_bytes(self) -> int:
        return sum(size for name, size in self.files.items() if "/" in name)


@dataclass
class Search:
    """The runs that were found. `left_out` says, in one line each, what was not searched."""

    folder: Folder
    runs: list[FoundRun] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def search(path: str | Path) -> Search:
    """All runs under a folder or URL. Raises UserError if it is no folder or cannot be listed."""
    folder = open_folder(path)
    if isinstance(folder, RemoteFolder):
        return _in_listing(str(path), folder)
    if not Path(path).is_dir():
        raise UserError(f"{path}: {'is a file, not a folder' if Path(path).exists() else 'no such folder'}")
    return _Walk(Path(path)).found


def pieces(found: Search, names: list[tuple[FoundRun, str]], most_bytes: int) -> Iterator[bytes | ReadingError]:
    """The beginning of each of these files, in this order. A file that cannot be read gives its error."""

    def piece(wanted: tuple[FoundRun, str]) -> bytes | ReadingError:
        run, name = wanted
        try:
            return found.folder.piece(run.prefix + name, 0, most_bytes)
        except UserError as error:
            return ReadingError(str(error))

    if isinstance(found.folder, LocalFolder):
        yield from map(piece, names)
        return
    with ThreadPoolExecutor(_TOGETHER) as pool:
        yield from pool.map(piece, names)


def _in_listing(url: str, folder: RemoteFolder) -> Search:
    """The runs in an object store, which lists all names at once."""
    runs: dict[str, dict[str, int]] = {}
    for name, size in folder.files(MAX_DEPTH).items():
        if match := _OF_A_RUN.fullmatch(name):
            runs.setdefault(match["run"] or "", {})[match["file"]] = size
    found = Search(folder)
    for run in sorted(runs):
        prefix = f"{run}/" if run else ""
        if any("/" in name for name in runs[run]) or MANIFEST_NAME in runs[run]:
            found.runs.append(FoundRun(f"{url.rstrip('/')}/{run}" if run else url, prefix, runs[run]))
    return found


class _Walk:
    """A walk through folders of this machine that visits each of them once."""

    def __init__(self, root: Path) -> None:
        self.found = Search(LocalFolder(root))
        self._root = root
        self._seen: set[tuple[int, int]] = set()
        self._entries = 0
        self._unreadable: list[str] = []
        self._too_deep = 0
        self._again = 0
        stack = [("", 0)]
        while stack and self._entries < MAX_ENTRIES:
            prefix, depth = stack.pop()
            folders = self._look(prefix)
            if depth < MAX_DEPTH:
                stack += [(f"{prefix}{name}/", depth + 1) for name in sorted(folders, reverse=True)]
            else:
                self._too_deep += len(folders)
        self._say(bool(stack))

    def _look(self, prefix: str) -> list[str]:
        """Notes the run in a folder if there is one. Returns the folders in it that may contain others."""
        entries = self._list(prefix)
        attempts = [entry.name for entry in entries if _ATTEMPT.fullmatch(entry.name) and _is_folder(entry)]
        known = {entry.name: entry for entry in entries if entry.name in (MANIFEST_NAME, SUMMARY_NAME)}
        if attempts or MANIFEST_NAME in known:
            files = {name: _size(entry) for name, entry in known.items()}
            for attempt in attempts:
                ranks = self._list(f"{prefix}{attempt}/")
                files |= {f"{attempt}/{e.name}": _size(e) for e in ranks if _RANK.fullmatch(e.name)}
            self.found.runs.append(FoundRun(str(self._root / prefix), prefix, files))
        if attempts:
            return []
        return [entry.name for entry in entries if not entry.name.startswith(".") and _is_folder(entry)]

    def _list(self, prefix: str) -> list[os.DirEntry[str]]:
        folder = self._root / prefix
        try:
            about = folder.stat()
            if (about.st_dev, about.st_ino) in self._seen:  # a link that leads back, or a second link to one folder
                self._again += 1
                return []
            self._seen.add((about.st_dev, about.st_ino))
            with os.scandir(folder) as entries:
                listed = list(entries)
        except OSError as error:
            self._unreadable.append(f"{folder}: {error.strerror or error}")
            return []
        self._entries += len(listed)
        return listed

    def _say(self, cut_short: bool) -> None:
        said = self.found.left_out
        if self._unreadable:
            more = f" (and {len(self._unreadable) - 1} more)" if len(self._unreadable) > 1 else ""
            said.append(f"cannot be listed: {self._unreadable[0]}{more}")
        if self._again:
            said.append(f"links to folders that were looked at already: {self._again}")
        if self._too_deep:
            said.append(f"folders more than {MAX_DEPTH} deep, not looked into: {self._too_deep}")
        if cut_short:
            said.append(f"the search ended after {self._entries:,} names: name a smaller folder")


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads to itself
        return False


def _size(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat().st_size
    except OSError:
        return 0
