"""Appends the records of one rank to its files: steps as blocks (`ddlprof.model.blocks`), all else as lines.

Disk space is limited: `Retention` decides which steps are kept as rows, and the sums of the others are exact. Each
write is one call with whole blocks or lines, with checksums, so a killed process leaves at most one torn end. A write
that fails is tried again, with growing pauses; what is held meanwhile is bounded, and the gap is noted.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from zlib import crc32

from ddlprof.base.kept_file import ResumedFile
from ddlprof.base.real_time import time
from ddlprof.model import codec
from ddlprof.model.issuers import UNKNOWN, Issuers, counted
from ddlprof.model.records import (
    NEVER,
    CollectiveShape,
    CollectiveTimes,
    End,
    Flush,
    RankHeader,
    Samples,
    StepRow,
    Stride,
    is_all_to_all,
)
from ddlprof.model.source_locations import SourceLocation
from ddlprof.writing.retention import Budget, Retention
from ddlprof.writing.step_buffer import StepBuffer

_MAX_SIGNATURES = 1000
_MOST_PLACES = 20_000
_MOST_NOTES = 1000
_MOST_HELD_BYTES = 2 << 20
"""The most bytes of rows, and of lines, that are held while nothing can be written; later steps are only summed."""
_LONGEST_PAUSE_S = 60.0
"""Between two tries of a write: 1 s after the first failure, then twice as long after each, up to this."""
_LAST_TRIES, _LAST_PAUSE_S = 5, 0.2


@dataclass(slots=True)
class FinishedStep:
    """A finished step: the row, and the collectives issued in it (records of `hooks.collectives`)."""

    row: StepRow
    collectives: list[Any]
    start: int
    """Absolute start, on the clock of the events."""
    saw_forward: bool
    """Whether an outermost forward with gradients was seen."""
    unobserved: int = 0
    """The number of collectives that torch counted and no hook observed."""
    marks: int = 0
    """`Recorder.marks` at the end of the step."""
    unawaited: int = 0
    """The number of collectives on streams for which no wait has ever been observed."""
    issuers: Sequence[SourceLocation | None] | None = None
    """Who issued each of the collectives, None where not known; None: nobody has looked in this step."""


def rank_files(directory: Path, attempt: int, rank: int) -> tuple[Path, Path]:
    """The paths of one rank's text file and of its file with the steps."""
    folder = directory / f"attempt-{attempt}"
    return folder / f"rank-{rank}.jsonl", folder / f"rank-{rank}.steps"


def _without_sizes(shapes: tuple[CollectiveShape, ...]) -> tuple[CollectiveShape, ...]:
    """The shapes without the sizes of all-to-alls, which change from step to step where tokens go to experts."""
    return tuple(replace(shape, bytes=0) if is_all_to_all(shape.op) else shape for shape in shapes)


class RankWriter:
    """Buffers text until `flush`; holds everything in memory until `open` says where the run directory is."""

    def __init__(self, header: RankHeader, budget: Budget = Budget()) -> None:  # noqa: B008
        self.header = header
        self.failure: str | None = None
        """Why nothing is written any more."""
        self._lines: list[str] = []
        self._lines_size = 0
        self._steps = StepBuffer()
        self._retention = Retention(budget)
        self._text_file: ResumedFile | None = None
        self._steps_file: ResumedFile | None = None
        self._trouble: _Trouble | None = None
        self._last_step = 0
        """The last step that was kept as a row."""
        self._signatures: dict[tuple[CollectiveShape, ...], int] = {}
        self._alike: dict[tuple[CollectiveShape, ...], int] = {}
        """The first of the signatures that differ in the sizes of all-to-alls only."""
        self._places: dict[SourceLocation, int] = {}
        self._notes: set[str] = set()
        self._issuers: dict[int, list[int]] = {}
        """By signature the places of those that issue its collectives."""

    def open(self, directory: Path) -> None:
        """Creates this rank's files. Raises OSError, FileExistsError if the rank has files already.

        After any other error there is no file, so it can be tried again.
        """
        text, steps = rank_files(directory, self.header.attempt, self.header.rank)
        text.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_EXCL
        opened: dict[Path, ResumedFile] = {}
        try:
            opened[steps] = ResumedFile(str(steps), flags)
            opened[text] = ResumedFile(str(text), flags)
            opened[text].append(_checked(codec.encode_header(self.header)))  # without it, nothing can be read
        except OSError:
            for path, file in opened.items():
                file.close()
                with suppress(OSError):
                    path.unlink()
            raise
        self._steps_file, self._text_file = opened[steps], opened[text]
        self.flush()

    # -- records --------------------------------------------------------------------------------------------------

    def step(self, step: FinishedStep) -> None:
        """Takes a finished step. Its collectives must have ended, or count as never ending."""
        row = step.row
        keeps = self._retention.keeps(row.step, row.flags)
        if keeps and self._is_full(self._steps.size, self._steps_file):
            keeps = False
            if self._trouble is not None:
                self._trouble.summed_steps += 1
        if not keeps:
            self._steps.add(row)
            return
        times: list[CollectiveTimes] = []
        if step.collectives:
            row, times = self._with_collectives(step)
        self._last_step = row.step
        self._spend(self._steps.keep(row, times), row.step)

    def _spend(self, size: int, step: int = 0) -> None:
        if self._retention.spend(step, size):
            self._add_line(codec.encode(Stride(self._last_step + 1, self._retention.stride)), is_needed=True)

    def _is_full(self, held_bytes: int, file: ResumedFile | None) -> bool:
        if self._trouble is None and file is not None:  # it is written at the next flush
            return False
        return held_bytes + (file.unwritten_bytes if file is not None else 0) > _MOST_HELD_BYTES

    def _add_line(self, line: str, is_needed: bool = False) -> None:
        """Takes a line. `is_needed`: others cannot be read without it, or it says how all ended."""
        if not is_needed and self._is_full(self._lines_size, self._text_file):
            if self._trouble is not None:
                self._trouble.lost_lines += 1
            return
        self._lines.append(line)
        self._lines_size += len(line)

    def _with_collectives(self, step: FinishedStep) -> tuple[StepRow, list[CollectiveTimes]]:
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
            self._add_line(codec.encode_signature(number, shapes), is_needed=True)
        if number is None:  # shapes that change every step: those of experts are taken for the first such
            number = self._alike.get(_without_sizes(key))
        if number is None:  # no details
            return row, []
        if step.issuers is not None:
            self._write_issuers(number, step.issuers)
        times = [
            CollectiveTimes(
                relative_us(c.ready, step.start),
                relative_us(c.end, step.start),
                relative_us(c.need, step.start),
                NEVER if c.exposed is None else min(c.exposed // 1000, NEVER - 1),
            )
            for c in step.collectives
        ]
        return replace(row, signature=number, first_seqs=tuple(groups.values())), times

    def context(self, row: codec.Record) -> None:
        """Writes any record that is a line by itself."""
        self._add_line(codec.encode(row), is_needed=isinstance(row, End))

    def note(self, hook: str, message: str) -> None:
        """Writes what was not measured, and why; the same note is written only once."""
        line = codec.encode_note(hook, message)
        if line not in self._notes and len(self._notes) < _MOST_NOTES:
            self._notes.add(line)
            self._add_line(line)

    def samples(self, step: int, counts: dict[SourceLocation, int], kind: type[Samples] = Samples) -> None:
        """Writes the numbers of stack samples taken in a step, by source line. `kind`: of `other` or of computing."""
        numbered = {}
        for place, count in counts.items():
            number = self._number_of(place)
            if number is not None:
                numbered[number] = count
        if numbered:
            self._add_line(codec.encode_samples(step, numbered, kind))

    def _number_of(self, place: SourceLocation) -> int | None:
        """The number of a place in the sources, which is written where it is new; None if there are too many."""
        number = self._places.get(place)
        if number is None and len(self._places) < _MOST_PLACES:
            number = self._places[place] = len(self._places)
            self._add_line(codec.encode_location(number, place), is_needed=True)
        return number

    def _write_issuers(self, signature: int, issuers: Sequence[SourceLocation | None]) -> None:
        """Writes who issues the collectives of a signature, where more is known of them than before."""
        known = self._issuers.get(signature, [UNKNOWN] * len(issuers))
        numbers = [UNKNOWN if place is None else self._number_of(place) for place in issuers]
        merged = [old if old != UNKNOWN or new is None else new for old, new in zip(known, numbers, strict=True)]
        if merged != known:
            self._issuers[signature] = merged
            self._add_line(codec.encode_issuers(Issuers(signature, counted(merged))), is_needed=True)

    # -- files ----------------------------------------------------------------------------------------------------

    def flush(self, last: bool = False) -> None:
        """Writes what is buffered: lines first, as they explain the steps. What cannot be written is kept for later."""
        if self.failure is not None:  # nothing is written any more, so nothing is kept
            self._lines, self._lines_size, self._steps = [], 0, StepBuffer()
            return
        files = self._text_file, self._steps_file
        trouble = self._trouble
        if None in files or (trouble is not None and not last and time.perf_counter() < trouble.try_again_at):
            return
        lines, self._lines, self._lines_size = self._lines, [], 0
        text = _checked("".join(lines)) if lines else b""
        error = _append(self._text_file, text) or _append(self._steps_file, self._taken(last))
        if error is not None:
            self._trouble = trouble = trouble or _Trouble(error, time.perf_counter())
            trouble.failed()
        elif trouble is not None:
            self._trouble = None
            self.note("files", trouble.told(time.perf_counter()))

    def _taken(self, last: bool) -> bytes:
        rows = self._steps.size
        taken = self._steps.take(last)
        self._spend(len(taken) - rows)
        return taken

    def close(self) -> None:
        """Writes what is left and closes the files. Tries for a second where that fails."""
        self.flush(last=True)
        for _ in range(_LAST_TRIES):
            if self._trouble is None:
                break
            time.sleep(_LAST_PAUSE_S)
            self.flush(last=True)
        if self._trouble is not None:
            self.failure = f"{self._trouble.reason} while writing the run"
        elif self._lines:  # the note about a trouble that has just ended
            self.flush(last=True)
        for file in (self._text_file, self._steps_file):
            if file is not None:
                file.close()
        self._text_file = self._steps_file = None


class _Trouble:
    """A write that failed, and what was lost since then."""

    def __init__(self, error: OSError, now_s: float) -> None:
        self.reason = error.strerror or str(error)
        self.try_again_at = now_s
        self.summed_steps = self.lost_lines = 0
        self._since_s = now_s
        self._failures = 0

    def failed(self) -> None:
        """Another try has failed."""
        self._failures += 1
        self.try_again_at = time.perf_counter() + min(2 ** (self._failures - 1), _LONGEST_PAUSE_S)

    def told(self, now_s: float) -> str:
        """What is said of it once it is over."""
        lost = f"{self.summed_steps} steps of it are there as sums, {self.lost_lines} other lines are lost"
        return f"{self.reason}: for {now_s - self._since_s:.0f} s nothing could be written; {lost}"


def relative_us(time: int | None, start: int) -> int:
    """Microseconds since `start` as stored in CollectiveTimes; NEVER for None."""
    return NEVER if time is None else min(max(0, (time - start) // 1000), NEVER - 1)


def _checked(lines: str) -> bytes:
    """The lines as they are on disk, with a line of their checksum."""
    text = codec.as_bytes(lines)
    return text + codec.as_bytes(codec.encode(Flush(crc32(text))))


def _append(file: ResumedFile | None, data: bytes) -> OSError | None:
    try:
        if file is not None:
            file.append(data)
    except OSError as error:
        return error
    return None
