"""Which of several directories are of one run: those with the same job id."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ddlprof.base.reading import ReadingError, parse_json
from ddlprof.store.numbers import DAMAGE
from ddlprof.store.parts import RunPart
from ddlprof.store.reader import MAX_MANIFEST_BYTES, decode_manifest, parts_in

_MAX_HEADER_BYTES = 1 << 20
"""A header has two thousand characters; with the longest names some more."""


def runs_in(paths: Sequence[str | Path]) -> list[list[str]]:
    """The directories of each run in `paths`, or in the folders that are named there.

    Directories with the same job id are parts of one run; one that does not tell its job is a run of its own. Raises
    UserError for a path without any run.
    """
    runs: dict[str, list[str]] = {}
    for path in paths:
        for part in parts_in(path):
            names = runs.setdefault(job_id_of(part) or f"\0{part.name}", [])
            if part.name not in names:
                names.append(part.name)
    return list(runs.values())


def job_id_of(part: RunPart) -> str:
    """The job's id by the manifest or the first rank that can be read; empty where none tells it."""
    if part.manifest is not None:
        with suppress(*DAMAGE):
            return decode_manifest(part.folder.piece(part.manifest, 0, MAX_MANIFEST_BYTES + 1)).job_id
    for files in part.ranks:
        begin = part.folder.piece(files.text, 0, _MAX_HEADER_BYTES)
        with suppress(*DAMAGE):
            if not isinstance(begin, ReadingError) and (job_id := _job_id_in(begin.partition(b"\n")[0])):
                return job_id
    return ""


def _job_id_in(line: bytes) -> str:
    value = parse_json(line)
    job_id = value.get("job_id") if isinstance(value, dict) else None
    return job_id if isinstance(job_id, str) else ""
