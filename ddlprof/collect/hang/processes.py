"""What the kernel says of threads, children and disks: files of /proc that need no root. Empty where there is no /proc.

Nothing here waits: a folder on a file system that is away would hold its reader, so those of networks are not asked.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from ddlprof.base.guarded import attempt
from ddlprof.model.hang import ChildState

_PROC = Path("/proc")
_MOST_CHILDREN = 200
_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_STATE, _UTIME, _STIME, _EXIT_CODE = 0, 11, 12, 49
"""Places in the kernel's line of a process, counted from after the name."""
_OF_NETWORKS = ("nfs", "cifs", "smb", "fuse", "lustre", "ceph", "gpfs", "9p", "beegfs", "afs")
_STATES = {"T": "stopped", "t": "stopped", "Z": "zombie", "X": "gone", "D": "disk"}
LEAST_FREE_BYTES = 1 << 16
"""A file system with less space for users is full."""


class Usage(NamedTuple):
    """What a process and its children have used so far. `cpu_s`: time of a processor, that waited for one included."""

    cpu_s: float
    io_bytes: int


def _fields(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()


def thread_state(native_id: int | None) -> tuple[str, str]:
    """The kernel's letter for a thread of this process, and the function of the kernel that it waits in."""
    folder = _PROC / "self" / "task" / str(native_id)
    fields = attempt(lambda: _fields(folder / "stat")) or [""]
    return fields[_STATE], _waits_in(folder)


def _waits_in(folder: Path) -> str:
    text = attempt(lambda: (folder / "wchan").read_text(encoding="ascii").strip()) or ""
    return "" if text == "0" else text


def children_of(pid: int | None = None) -> Iterator[int]:
    """The children of a process, those that have ended but were not waited for included."""
    for thread in attempt(lambda: os.listdir(_PROC / str(pid or "self") / "task")) or ():
        path = _PROC / str(pid or "self") / "task" / thread / "children"
        yield from map(int, (attempt(lambda path=path: path.read_text()) or "").split())  # type: ignore[misc]


def descendants() -> list[int]:
    """Children of this process, theirs, and so on, at most 200."""
    found: list[int] = []
    new = list(children_of())
    while new and len(found) < _MOST_CHILDREN:
        found += new
        new = [child for parent in new for child in children_of(parent)]
    return found[:_MOST_CHILDREN]


def child_states() -> list[ChildState]:
    """The children of this process."""
    states = (attempt(lambda pid=pid: _child(pid)) for pid in list(children_of())[:_MOST_CHILDREN])  # type: ignore[misc]
    return [state for state in states if state is not None]


def _child(pid: int) -> ChildState:
    folder = _PROC / str(pid)
    text = (folder / "stat").read_text(encoding="utf-8", errors="replace")
    fields = text.rpartition(")")[2].split()
    ended = ""
    if fields[_STATE] in "ZX":
        ended = how_ended(int(fields[_EXIT_CODE])) if len(fields) > _EXIT_CODE else "ended"
    return ChildState(pid, text.partition("(")[2].rpartition(")")[0], fields[_STATE], ended, _waits_in(folder))


def how_ended(status: int) -> str:
    """The words for a process's exit status, as `os.wait` gives it."""
    if number := status & 0x7F:
        name = attempt(lambda: signal.Signals(number).name) or f"signal {number}"
        return f"killed by {name}"
    return f"ended with exit code {status >> 8}"


def usage() -> Usage:
    """What this process and its descendants have used."""
    cpu_s, io_bytes = sum(os.times()[:2]) + _queued_s(_PROC / "self"), _io_bytes(_PROC / "self")
    for pid in descendants():
        fields = attempt(lambda pid=pid: _fields(_PROC / str(pid) / "stat"))  # type: ignore[misc]
        if fields:
            cpu_s += (int(fields[_UTIME]) + int(fields[_STIME])) / _TICKS + _queued_s(_PROC / str(pid))
        io_bytes += _io_bytes(_PROC / str(pid))
    return Usage(cpu_s, io_bytes)


def _queued_s(folder: Path) -> float:
    """The seconds for which the first thread of a process could run and had no processor."""
    text = attempt(lambda: (folder / "schedstat").read_text(encoding="ascii")) or ""
    return int(text.split()[1]) / 1e9 if text else 0.0


def _io_bytes(folder: Path) -> int:
    """The bytes that a process has read and written, of files and pipes."""
    text = attempt(lambda: (folder / "io").read_text(encoding="ascii")) or ""
    return sum(int(line.split()[1]) for line in text.splitlines()[:2])


def process_state(pid: int) -> str:
    """`stopped`, `zombie`, `gone`, `disk` (waits for one), or empty for a process of this machine that can run."""
    try:
        return _STATES.get(_fields(_PROC / str(pid) / "stat")[_STATE], "")
    except FileNotFoundError:
        return "gone" if _PROC.is_dir() and (_PROC / "self").exists() else ""
    except (OSError, IndexError):
        return ""


def full_disks(folders: Iterable[str]) -> list[str]:
    """Those of these folders, and of the folders of files that are open for writing, that have no space left."""
    remote = _remote_mounts()
    asked = {os.path.realpath(folder) for folder in [*folders, *_written()] if folder}
    local = sorted(folder for folder in asked if not any(_is_in(folder, mount) for mount in remote))
    return [folder for folder in local if attempt(lambda folder=folder: _is_full(folder))]  # type: ignore[misc]


def _is_full(folder: str) -> bool:
    space = os.statvfs(folder)
    return space.f_blocks > 0 and space.f_bavail * space.f_frsize < LEAST_FREE_BYTES and not space.f_flag & os.ST_RDONLY


def _written() -> Iterator[str]:
    for descriptor in attempt(lambda: os.listdir(_PROC / "self" / "fd")) or ():
        target = attempt(lambda d=descriptor: os.readlink(_PROC / "self" / "fd" / d)) or ""  # type: ignore[misc]
        if target.startswith("/") and not target.startswith(("/dev/", "/proc/", "/sys/", "/memfd:")):
            flags = attempt(lambda d=descriptor: _flags(d)) or 0  # type: ignore[misc]
            if flags & (os.O_WRONLY | os.O_RDWR):
                yield os.path.dirname(target)


def _flags(descriptor: str) -> int:
    text = (_PROC / "self" / "fdinfo" / descriptor).read_text(encoding="ascii")
    return int(next(line.split()[1] for line in text.splitlines() if line.startswith("flags:")), 8)


def _remote_mounts() -> list[str]:
    text = attempt(lambda: (_PROC / "self" / "mounts").read_text(encoding="utf-8", errors="replace")) or ""
    fields = [line.split() for line in text.splitlines()]
    return [each[1] for each in fields if len(each) > 2 and each[2].startswith(_OF_NETWORKS)]


def _is_in(folder: str, mount: str) -> bool:
    return folder == mount or folder.startswith(mount.rstrip("/") + "/")
