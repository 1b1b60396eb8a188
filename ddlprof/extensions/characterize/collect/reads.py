"""Watches which files a loader reads, and drops them from the page cache. For `ddlprof characterize` only.

Files are found by Python's `open` audit event while a batch is fetched, and in /proc/self/fd and /proc/self/maps at the
start of an epoch and after its first fetch. Some files opened by code other than Python's are missed. Files are dropped
when an epoch begins; the kernel may cache them again during it. `posix_fadvise` needs no root and has no effect on
pages that a process has mapped. How much really came from storage is in /proc/self/io.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from ddlprof.base.kept_file import KeptFile
from ddlprof.collect.install import replace
from ddlprof.collect.loader.fetch_meter import IoCounters, ReadBytes
from ddlprof.extensions.characterize.model import records_of
from ddlprof.torch_private.loader import CREATE_FETCHER, fetchers

_CODE = (".py", ".pyc", ".so")
_NOT_DATA = tuple(
    os.path.join(folder, "")
    for folder in ("/dev", "/proc", "/sys", "/etc", "/lib", "/usr/lib", "/usr/share", sys.prefix, sys.base_prefix)
)


def drop_from_cache(paths: Iterable[str]) -> None:
    """Drops files from the page cache, except for pages that some process has mapped."""
    for path in paths:
        with contextlib.suppress(OSError):  # deleted meanwhile
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fdatasync(descriptor)  # unwritten pages would stay
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


class ReadsWatch:
    """Watches reads in one process. Appends to `log`, which the processes of a rank share.

    After an error, the error is written there and nothing more, as incomplete sums are worse than none.
    """

    def __init__(self, log: str) -> None:
        self._log = Path(log)
        self._file: KeptFile | None = None
        self._failed = False
        self._counters = IoCounters(whole_process=True)
        self._epoch: Epoch | None = None
        self._dropped_bytes = 0
        sys.addaudithook(self._audit)  # audit hooks cannot be removed

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and self._epoch is not None:
            with self._failing_open():  # an error would be raised by the script's open()
                path, _, flags = arguments
                if isinstance(path, (str, bytes)) and (flags & os.O_ACCMODE) != os.O_WRONLY:
                    self._epoch.see(os.path.abspath(os.fsdecode(path)))

    def fetch(self, epoch: Epoch, fetch: Callable[..., Any], *arguments: Any) -> Any:
        """Calls `fetch(*arguments)`, counting its reads for that epoch."""
        begin: ReadBytes | None = None
        with self._failing_open():
            begin = ReadBytes.of(self._counters.read())
        self._epoch = epoch
        try:
            return fetch(*arguments)
        finally:
            self._epoch = None
            with self._failing_open():
                end = ReadBytes.of(self._counters.read())
                if begin is not None:
                    self.write(asked=end.asked - begin.asked, disk=end.storage - begin.storage)
                epoch.fetched()

    def write(self, **record: Any) -> None:
        """Writes one line in one call, so that lines of several processes do not mix. Raises OSError."""
        if self._failed:
            return
        if self._file is None:  # late, as rank 0 must find an empty run directory
            self._log.parent.mkdir(parents=True, exist_ok=True)
            self._file = KeptFile(str(self._log), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        self._file.append(json.dumps(record).encode() + b"\n")

    @contextlib.contextmanager
    def _failing_open(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if not self._failed:
                with contextlib.suppress(Exception):
                    os.truncate(self._log, 0)  # makes room for one more line
                    self.write(failed=f"{type(error).__name__}: {error}")
            self._failed = True

    def begin_epoch(self) -> Epoch:
        """Begins an epoch of one loader."""
        epoch = Epoch(self)
        with self._failing_open():
            epoch.look_around()
        return epoch

    def drop_again(self) -> None:
        """Drops the files that processes of this rank have read since the last call."""
        with self._failing_open():
            if self._log.exists():
                content = self._log.read_bytes()[self._dropped_bytes :]
                self._dropped_bytes += len(content)
                drop_from_cache({record["file"] for record in records_of(content) if "file" in record})


class Epoch:
    """The files that one process has read in one iteration over one loader; see `ReadsWatch.begin_epoch`."""

    def __init__(self, watch: ReadsWatch) -> None:
        self._watch = watch
        self._seen: set[str] = set()
        self._fetched = False

    def see(self, path: str) -> None:
        """Adds a file that is, or may be, read."""
        if path not in self._seen and _is_data(path):
            self._seen.add(path)
            self._watch.write(file=path)

    def look_around(self) -> None:
        """Adds the files that are open or mapped now."""
        for path in {*_open_files(), *_mapped_files()}:
            self.see(path)

    def fetched(self) -> None:
        """Called after each fetch; after the first, adds files that other code than Python's opened and holds open."""
        if not self._fetched:
            self._fetched = True
            self.look_around()
            for path in filter(_is_data, _mapped_files()):
                self._watch.write(mapped=path)


def _is_data(path: str) -> bool:
    of_a_package = os.path.dirname(path).endswith((".dist-info", ".egg-info"))  # a checkout's, beside the data
    return not (path.startswith(_NOT_DATA) or path.endswith(_CODE) or of_a_package) and os.path.isfile(path)


def _open_files() -> Iterator[str]:
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the descriptor that lists them
            if fcntl.fcntl(int(descriptor), fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
                yield os.readlink(f"/proc/self/fd/{descriptor}")


def _mapped_files() -> set[str]:
    """The mapped files, without libraries (executable in part) and memory shared for writing."""
    lines = [line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()]
    files = [(line[1], line[5]) for line in lines if len(line) == 6 and line[5].startswith("/")]
    code = {path for rights, path in files if "x" in rights or rights == "rw-s"}
    return {path for _, path in files} - code


class ReadsInit:
    """A `worker_init_fn` that can be pickled: calls the user's own, then watches what this worker reads."""

    def __init__(self, user: Callable[[int], None] | None, log: str) -> None:
        self.user = user
        self.log = log

    def __call__(self, worker: int) -> None:
        with contextlib.suppress(Exception):  # reads are then not known
            self._install()
        if self.user is not None:
            self.user(worker)

    def _install(self) -> None:
        watch = ReadsWatch(self.log)
        kind = fetchers()
        original: Any = getattr(kind, CREATE_FETCHER)

        def create_fetcher(*args: Any, **kwargs: Any) -> Any:
            """Makes the fetcher, which happens once an epoch."""
            fetcher: Any = original(*args, **kwargs)
            fetch, epoch = fetcher.fetch, watch.begin_epoch()
            fetcher.fetch = lambda *arguments: watch.fetch(epoch, fetch, *arguments)
            return fetcher

        replace(kind, CREATE_FETCHER, staticmethod(create_fetcher))
