"""What the loaders of an experiment read: a file of JSON lines for each rank, written by all its processes.

`collect/reads.py` writes it. `{"file": PATH}`: a file was read. `{"mapped": PATH}`: a file was mapped
into memory. `{"asked": BYTES, "disk": BYTES}`: a fetch, with the bytes returned by read() and those read from storage.
`{"failed": WHY}`: from some moment on, something was not written.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_FILES = "rank-*.reads"
_MOST_BYTES = 1 << 30
_LONGEST_LINE = 1 << 16
_MOST_READ = 1 << 62


@dataclass(frozen=True)
class Reads:
    """What all ranks and their workers read in a whole run."""

    files: frozenset[str]
    mapped: frozenset[str]
    """Files that were mapped into memory. Reads through a mapping are not in `asked_bytes`."""
    asked_bytes: int
    disk_bytes: int


def reads_name(rank: int) -> str:
    """The name of the file of one rank."""
    return _FILES.replace("*", str(rank))


def load_reads(directory: Path) -> Reads | None:
    """The reads in a run directory; None if reads were not watched, or not completely."""
    paths = sorted(directory.glob(_FILES))
    if not all(path.is_file() and path.stat().st_size <= _MOST_BYTES for path in paths):
        return None
    records = [record for path in paths for record in records_of(path.read_bytes())]
    if not records or any("failed" in record for record in records):
        return None
    return Reads(
        files=frozenset(r["file"] for r in records if "file" in r),
        mapped=frozenset(r["mapped"] for r in records if "mapped" in r),
        asked_bytes=sum(r.get("asked", 0) for r in records),
        disk_bytes=sum(r.get("disk", 0) for r in records),
    )


def records_of(content: bytes) -> Iterator[dict[str, Any]]:
    """The records in the lines. A last line without its end is torn and left out."""
    return map(_record, content.split(b"\n")[:-1])


def _record(line: bytes) -> dict[str, Any]:
    try:
        record = json.loads(line) if len(line) <= _LONGEST_LINE else None
    except (ValueError, RecursionError):
        record = None
    if isinstance(record, dict) and all(_is_good(name, value) for name, value in record.items()):
        return record
    return {"failed": "a damaged line"}


def _is_good(name: str, value: Any) -> bool:
    if name in ("asked", "disk"):
        return type(value) is int and 0 <= value < _MOST_READ
    return name not in ("file", "mapped") or isinstance(value, str)
