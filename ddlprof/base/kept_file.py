"""Files that stay usable although the script may close all descriptors, as daemons do, and open files of its own.

Our descriptors have high numbers, which `open` does not use in practice, as it takes the lowest free one. Before
writing to or closing a number, it is checked that it still belongs to our file. A file whose number is gone is opened
again by its path.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys

if sys.platform != "win32":
    import fcntl

_MOST = 1024
"""The highest number used. With a higher one, each fork would copy a larger table of descriptors."""
_CLOEXEC = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)

_NO_DESCRIPTOR = -1

Identity = tuple[int, int]


def _identity(descriptor: int) -> Identity:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def _open_high(path: str, flags: int, mode: int = 0o644) -> int:
    low = os.open(path, flags | _CLOEXEC, mode)
    if sys.platform == "win32":
        return low
    limit = os.sysconf("SC_OPEN_MAX")
    most = min(limit, _MOST) if limit > 0 else _MOST
    try:
        high = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, most * 3 // 4)
    except OSError:  # all are in use
        return low
    os.close(low)
    return high


class _Kept:
    """A descriptor, and what identifies its file."""

    def __init__(self, path: str, flags: int, mode: int = 0o644) -> None:
        self._path = path
        self._flags = flags & ~(os.O_CREAT | os.O_EXCL)
        self._descriptor: int | None = _open_high(path, flags, mode)
        self._identity = _identity(self._descriptor)

    def _is_ours(self) -> bool:
        try:
            return self._descriptor is not None and _identity(self._descriptor) == self._identity
        except OSError:  # it was closed
            return False

    def _open_again(self, identity: Identity | None) -> int:
        """Opens the path again. Raises OSError also if it now leads to another file than that with `identity`."""
        if self._descriptor is None:
            raise OSError(errno.EBADF, "closed")
        descriptor = _open_high(self._path, self._flags)
        if identity not in (None, _identity(descriptor)):
            os.close(descriptor)
            raise OSError(errno.ESTALE, f"{self._path} was replaced")
        self._descriptor, self._identity = descriptor, _identity(descriptor)
        return descriptor

    def close(self) -> None:
        """Closes the file, once. A number that now belongs to another file is left open."""
        ours, descriptor, self._descriptor = self._is_ours(), self._descriptor, None
        if ours and descriptor is not None:
            os.close(descriptor)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # never opened, or the interpreter ends
            self.close()


class KeptFile(_Kept):
    """A file of ours. All methods but `close` raise OSError if reading or writing fails."""

    def append(self, data: bytes) -> None:
        """Appends to a file that was opened for appending."""
        view = memoryview(data)
        while view:
            view = view[os.write(self._ours(), view) :]

    def write_at(self, data: bytes, offset: int) -> None:
        """Writes `data` at an offset in bytes."""
        os.pwrite(self._ours(), data, offset)

    def read_at(self, size: int, offset: int) -> bytes:
        """Reads `size` bytes at an offset. Takes about a microsecond: the number is checked only if reading fails."""
        try:
            return os.pread(self._descriptor if self._descriptor is not None else _NO_DESCRIPTOR, size, offset)
        except OSError:
            return os.pread(self._ours(), size, offset)

    def _ours(self) -> int:
        if self._descriptor is not None and self._is_ours():
            return self._descriptor
        return self._open_again(self._identity)


class ResumedFile(KeptFile):
    """A file whose `append` goes on where it failed: what could not be written is written first the next time."""

    _unwritten = b""

    def append(self, data: bytes) -> None:
        """Appends what is left of earlier data, and `data`."""
        self._unwritten += data
        while self._unwritten:
            self._unwritten = self._unwritten[os.write(self._ours(), self._unwritten) :]

    @property
    def unwritten_bytes(self) -> int:
        """The number of bytes that could not be written yet."""
        return len(self._unwritten)


class KernelFile(_Kept):
    """A file of figures that the kernel makes on each read, such as those in /proc."""

    def __init__(self, path: str) -> None:
        super().__init__(path, os.O_RDONLY)

    def read(self, size: int) -> bytes:
        """The current content, at most `size` bytes. Raises OSError if it is not available any more."""
        try:
            return os.pread(self._descriptor if self._descriptor is not None else _NO_DESCRIPTOR, size, 0)
        except OSError:
            return os.pread(self._open_again(None), size, 0)

    def doubt(self) -> None:
        """Called if the content was not valid: the next `read` opens the file again. Any thread may call it."""
        if self._descriptor is not None and not self._is_ours():
            self._descriptor = _NO_DESCRIPTOR
