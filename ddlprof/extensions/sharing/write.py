"""Writes a shared run as one archive. The same run always gives the same bytes."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from ddlprof.base.errors import UserError, refusing
from ddlprof.base.files import replacing
from ddlprof.base.reading import ReadingError
from ddlprof.extensions.sharing.allowed import (
    Fits,
    Origins,
    shared_operators,
    shared_rank,
)
from ddlprof.extensions.sharing.names import Pseudonyms
from ddlprof.model.manifest import IMPORTED, MANIFEST_NAME, OPERATORS_NAME
from ddlprof.store import RunData, load_run
from ddlprof.store.archive import SUFFIX, ZipFolder
from ddlprof.store.parts import RankFiles, RunPart, without_copies
from ddlprof.store.reader import parts_in

SHOWN_ORIGIN_UNIX_NS = 946_684_800_000_000_000
"""The unix time in ns at which every shared run begins: 2000-01-01."""
_DATE = (1980, 1, 1, 0, 0, 0)
_ACCESS = 0o644 << 16
_UNIX = 3


@dataclass(frozen=True)
class Shared:
    """What was written."""

    ranks: int
    steps: int
    """The steps of all ranks."""
    file_bytes: int
    replaced: dict[str, int]
    """The number of names of each kind that were replaced by numbers."""


def share(paths: Sequence[str], output: Path) -> Shared:
    """Writes the shared run of a run directory, or of the parts of a run. Replaces `output` as a whole.

    Raises UserError if there is no run that this version can read, or if the file cannot be written.
    """
    if output.suffix.lower() != SUFFIX:
        raise UserError(f"{output}: the name of a shared run ends with {SUFFIX}")
    run = load_run(paths)
    names = Pseudonyms(_job_id(run))
    with refusing(f"{output}: cannot be written"), replacing(output.resolve()) as temporary:
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in _members(run, paths, names):
                archive.writestr(_info(name), content, compresslevel=9)
        ZipFolder(temporary).files()  # raises if the archive could not be read again
        size = temporary.stat().st_size
    return Shared(len(run.ranks), sum(rank.step_count for rank in run.ranks), size, names.counts())


def _job_id(run: RunData) -> str:
    """An id that differs between shared runs. It is made from the times of steps, which are in the file anyway."""
    digest = sha256()
    for rank in run.ranks:
        digest.update(rank.steps["start_ns"].tobytes() + rank.steps["step_ns"].tobytes())
    imported = run.manifest is not None and run.manifest.is_imported
    return f"{IMPORTED if imported else ''}shared-{digest.hexdigest()[:16]}"


def _info(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, _DATE)
    info.compress_type, info.create_system, info.external_attr = zipfile.ZIP_DEFLATED, _UNIX, _ACCESS
    return info


def _members(run: RunData, paths: Sequence[str], names: Pseudonyms) -> Iterator[tuple[str, bytes]]:
    fits = Fits(names, _origins(run))
    if run.manifest is not None:
        yield MANIFEST_NAME, fits.shared(run.manifest).text().encode()
    if run.step is not None:
        yield OPERATORS_NAME, shared_operators(run.step, fits).text().encode()
    for part, files in _rank_files(run, paths):
        text, steps = _contents(part, files)
        shared_text, shared_steps = shared_rank(text, steps, files.label, fits)
        yield files.label, shared_text
        if files.steps is not None:
            yield files.steps_label, shared_steps


def _origins(run: RunData) -> Origins:
    moments = [rank.header.origin_unix_ns for rank in run.ranks]
    if run.manifest is not None:
        moments += [run.manifest.origin_unix_ns, run.manifest.created_unix_ns]
    uptimes = [rank.header.origin_ns for rank in run.ranks]
    return Origins(min(moments), min(uptimes, default=0), SHOWN_ORIGIN_UNIX_NS)


def _rank_files(run: RunData, paths: Sequence[str]) -> Iterator[tuple[RunPart, RankFiles]]:
    """The files of the ranks that a report covers, in its order."""
    wanted = {(rank.attempt, rank.rank) for rank in run.ranks}
    parts = without_copies([part for path in paths for part in parts_in(path)])
    found = [(part, files) for part in parts for files in part.ranks if (files.attempt, files.rank) in wanted]
    yield from sorted(found, key=lambda each: (each[1].attempt, each[1].rank))


def _contents(part: RunPart, files: RankFiles) -> tuple[bytes, bytes]:
    text, *steps = part.folder.contents(files.names)
    if isinstance(text, ReadingError):
        raise UserError(f"{part.name}: {files.label}: {text}")
    return text, b"".join(each for each in steps if not isinstance(each, ReadingError))
