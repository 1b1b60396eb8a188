"""Appends the records of one rank to its files. Disk space is limited: past a cap only every k-th step is kept as a
row, and the sums of the others go into exact aggregates.

Each write is one call with whole lines, so a killed process leaves at most one torn line at the end. The last line of
each write has checksums of that write, so that damage is detected. A full disk stops the writing, not the training.
"""

from __future__ import annotations

import os
from dataclasses import fields, replace
from pathlib import Path
from zlib import crc32

from ddlprof.collect.process.kept_file import KeptFile
from ddlprof.collect.steps.sums import Step, relative_us
from ddlprof.model import codec
from ddlprof.model.records import (
    NEVER,
    Aggregate,
    CollectiveShape,
    CollectiveTimes,
    Flush,
    RankHeader,
    StepRow,
    is_all_to_all,
)
from ddlprof.model.source_places import SourcePlace

CAP_STEPS = 200_000
"""Rows kept at each stride: the stride is 1 for the first 200,000 rows, 2 for the next 200,000, then 4, and so on."""
_MAX_SIGNATURES = 1000
_SUMMED = tuple(f.name for f in fields(Aggregate))[2:]  # all but where it begins and of how many steps it is


def rank_files(directory: Path, attempt: int, rank: int) -> tuple[Path, Path]:
    """The paths of one rank's text file and of its file with the times of collectives."""
    folder = directory / f"attempt-{attempt}"
    return folder / f"rank-{rank}.jsonl", folder / f"rank-{rank}.collectives"


def _without_sizes(shapes: tuple[CollectiveShape, ...]) -> tuple[CollectiveShape, ...]:
    """The shapes without the sizes of all-to-alls, which change from step to step where tokens go to experts."""
    return tuple(replace(shape, bytes=0) if is_all_to_all(shape.op) else shape for shape in shapes)


class RankWriter:
    """Buffers text until `flush`; holds everything in memory until `open` says where the run directory is."""

    def __init__(self, header: RankHeader, cap_steps: int = CAP_STEPS) -> None:
        self.header = header
        self.failure: str | None = None
        self._lines: list[str] = []
        self._times: list[bytes] = []
        self._times_bytes = 0
        self._text_file: KeptFile | None = None
        self._times_file: KeptFile | None = None
        self._cap = cap_steps
        self._kept_at_stride = 0
        self._stride = 1
        self._sums: dict[str, int | None] | None = None
        self._summed_first = 0
        self._summed_steps = 0
        self._signatures: dict[tuple[CollectiveShape, ...], int] = {}
        self._alike: dict[tuple[CollectiveShape, ...], int] = {}
        """The first of the signatures that differ in the sizes of all-to-alls only."""
        self._places: dict[SourcePlace, int] = {}
        self._notes: set[str] = set()

    def open(self, directory: Path) -> None:
        """Creates this rank's files. Raises OSError, FileExistsError if the rank has files already."""
        text, times = rank_files(directory, self.header.attempt, self.header.rank)
        text.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_EXCL
        self._times_file = KeptFile(str(times), flags)
        self._text_file = KeptFile(str(text), flags)
        self._append([codec.encode_header(self.header)], [])  # by itself: without it, nothing can be read
        self.flush()

    # -- records --------------------------------------------------------------------------------------------------

    def step(self, step: Step) -> None:
        """Writes a finished step. Its collectives must have ended, or count as never ending."""
        row = step.row
        if not row.flags and row.step % self._stride:
            self._sum(row)
            return
        self._write_aggregate()
        self._kept_at_stride += 1
        if self._kept_at_stride >= self._cap:
            self._stride *= 2
            self._kept_at_stride = 0
        if step.collectives:
            row = self._with_collectives(step)
        self._lines.append(codec.encode_step(row))

    def _with_collectives(self, step: Step) -> StepRow:
        groups: dict[str, int] = {}
        shapes = []
        for c in step.collectives:
            groups.setdefault(c.group, c.seq)
            shapes.append(CollectiveShape(c.group, c.op, c.bytes, c.ranks, c.root))
        key = tuple(shapes)
        number = self._signatures.get(key)
        row = step.row
        if number is None and len(self._signatures) < _MAX_SIGNATURES:
            number = self._signatures[key] = len(self._signatures)
            self._alike.setdefault(_without_sizes(key), number)
            self._lines.append(codec.encode_signature(number, shapes))
        if number is None:  # shapes that change every step: those of experts are taken for the first such
            number = self._alike.get(_without_sizes(key))
        if number is None:  # no details
            return row
        times = [
            CollectiveTimes(
                relative_us(c.ready, step.start),
                relative_us(c.end, step.start),
                relative_us(c.need, step.start),
                NEVER if c.exposed is None else min(c.exposed // 1000, NEVER - 1),
            )
            for c in step.collectives
        ]
        self._times.append(codec.encode_times(times))
        return replace(row, signature=number, first_seqs=tuple(groups.values()))

    def _sum(self, row: StepRow) -> None:
        if self._sums is None:
            self._sums = {name: getattr(row, name) for name in _SUMMED}
            self._summed_first, self._summed_steps = row.step, 1
            return
        for name in _SUMMED:
            old, new = self._sums[name], getattr(row, name)
            self._sums[name] = None if old is None or new is None else old + new
        self._summed_steps += 1

    def _write_aggregate(self) -> None:
        if self._sums is not None:
            values = {name: self._sums[name] for name in _SUMMED}
            self._lines.append(codec.encode(Aggregate(self._summed_first, self._summed_steps, **values)))  # type: ignore[arg-type]
            self._sums = None

    def context(self, row: codec.Record) -> None:
        """Writes any record that is a line by itself."""
        self._lines.append(codec.encode(row))

    def note(self, hook: str, message: str) -> None:
        """Writes what was not measured, and why; the same note is written only once."""
        line = codec.encode_note(hook, message)
        if line not in self._notes:
            self._notes.add(line)
            self._lines.append(line)

    def samples(self, step: int, counts: dict[SourcePlace, int]) -> None:
        """Writes the numbers of stack samples taken in the `other` of a step, by source line."""
        numbered = {}
        for place, count in counts.items():
            if place not in self._places:
                self._places[place] = len(self._places)
                self._lines.append(codec.encode_place(self._places[place], place))
            numbered[self._places[place]] = count
        if numbered:
            self._lines.append(codec.encode_samples(step, numbered))

    # -- files ----------------------------------------------------------------------------------------------------

    def flush(self, last: bool = False) -> None:
        """Writes the buffered records; collectives first, so that each step on disk has its collectives on disk."""
        if last:
            self._write_aggregate()
        if self.failure is not None:  # nothing is written any more, so nothing is kept
            self._lines, self._times = [], []
            return
        if self._text_file is None or self._times_file is None or not self._lines:
            return
        lines, self._lines = self._lines, []
        times, self._times = self._times, []
        try:
            self._append(lines, times)
        except OSError as error:
            self.failure = f"{error.strerror or error} while writing the run"

    def _append(self, lines: list[str], times: list[bytes]) -> None:
        text, packed = codec.as_bytes("".join(lines)), b"".join(times)
        self._times_bytes += len(packed)
        end = codec.encode(Flush(crc32(text), self._times_bytes, crc32(packed)))
        if self._times_file is not None and self._text_file is not None:
            self._times_file.append(packed)
            self._text_file.append(text + codec.as_bytes(end))

    def close(self) -> None:
        """Flushes and closes the files."""
        self.flush(last=True)
        for file in (self._text_file, self._times_file):
            if file is not None:
                file.close()
        self._text_file = self._times_file = None
