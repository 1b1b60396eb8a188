"""Follows one rank's file as it grows: what has been read once is not read again, and memory is bounded.

A part of the file counts once the line with its checksums is there; what comes after the last of them may be half
written. Kept are the parts with the most recent steps, the few lines that explain them, and sums over all steps. A file
that does not go on as it was has been replaced, and is read from its beginning.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from ddlprof.base.reading import ReadingError, parse_json
from ddlprof.live.readings import EnergyMeter, HealthReadings
from ddlprof.model import codec
from ddlprof.model.checkpoint_files import CheckpointFile
from ddlprof.model.classes import CLASSES, OPTIONAL
from ddlprof.model.codec import Columns, columns_of
from ddlprof.model.hang import standstill_s
from ddlprof.model.records import MISSING, End, Flag, Flush, RankHeader
from ddlprof.store import RankData
from ddlprof.store.flushes import FLUSH, decode_flush
from ddlprof.store.numbers import DAMAGE
from ddlprof.store.rankfile import decode_rank
from ddlprof.store.tables import CONTEXT_FIELDS

Read = Callable[[int, int], bytes]
"""`read(begin, end)`: bytes of a file, fewer where it ends before. Raises ReadingError."""

CHUNK_BYTES = 4 << 20
"""The most bytes that are read at once."""
MAX_PART_BYTES = 64 << 20
"""A file without a checksum in so many bytes is not a rank's."""
MAX_KEPT_BYTES = 4 << 20
"""The most bytes of lines that explain others; collectives whose shapes come later are not told apart."""
_MOST_PARTS = 5000
"""The most parts that are kept of a process that writes counters and makes no steps."""
_MOST_FILES = 1000
"""The most checkpoints, read or written, that are kept of a rank."""
_TAIL_BYTES = 64
"""The last bytes read, which are compared to detect a replaced file; a line of checksums is about as long."""
_STEP = b'\n["s",'
_EXPLAINING = re.compile(rb'^\["[gltbn]",[^\n]*\n', re.MULTILINE)
"""Lines that later ones refer to, or that hold for the whole run: shapes, sources, clocks, calibration, notes."""
_TIMES = ("step", *CLASSES)


@dataclass
class ClassSums:
    """Sums over steps in which the same classes were measured."""

    steps: int = 0
    times_ns: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_TIMES, 0))


@dataclass
class StepSums:
    """Sums over all steps of a rank so far, including the unusual ones."""

    steps: int = 0
    last_step: int | None = None
    samples: int | None = None
    epochs: int = 0
    """The number of steps that had the first batch of an epoch."""
    epoch_step: int | None = None
    """The last step that had the first batch of an epoch."""
    epoch_steps: int | None = None
    """The length of the last whole epoch, in steps."""
    by_pattern: dict[frozenset[str], ClassSums] = field(default_factory=dict)
    """The sums by the optional classes that were measured: the time of one that was not is in another class."""
    unusual: dict[str, int] = field(default_factory=dict)
    """The number of steps by the name of their flag."""
    usual_steps: int = 0
    usual_ns: int = 0
    """Steps without a flag in which nothing hung, and their time."""

    def add(self, rank: RankData) -> None:
        """Adds the steps decoded from a further piece of the rank's file."""
        steps = rank.steps
        if len(steps):
            self.steps += len(steps)
            self.last_step = int(steps["step"][-1])
            flags = steps["flags"]
            took = steps["step_ns"][(flags == 0) & (steps["step_ns"] <= _hang_ns(steps["step_ns"]))]
            self._add_usual(len(took), int(took.sum()))
            for flag in Flag:
                found = int(np.count_nonzero(flags & int(flag)))
                if found:
                    name = (flag.name or "").lower()
                    self.unusual[name] = self.unusual.get(name, 0) + found
            epochs = np.flatnonzero(flags & int(Flag.EPOCH_START))
            for step in steps["step"][epochs].tolist():
                self.epochs += 1
                self.epoch_steps = None if self.epoch_step is None else step - self.epoch_step
                self.epoch_step = step
            known = steps["samples"][steps["samples"] != MISSING]
            self._add_samples(int(known.sum()) if len(known) else None)
            self._add_times(rank)
        for sums in rank.aggregates:
            self.steps += sums.steps
            self._add_usual(sums.steps, sums.step_ns)
            self._add_samples(sums.samples)
            pattern = frozenset(name for name in OPTIONAL if getattr(sums, f"{name}_ns") is not None)
            times = {name: getattr(sums, f"{name}_ns") or 0 for name in _TIMES}
            self._add_sums(pattern, sums.steps, times)

    def _add_usual(self, steps: int, step_ns: int) -> None:
        self.usual_steps += steps
        self.usual_ns += step_ns

    @property
    def usual_s(self) -> float | None:
        """The mean of the usual steps, in seconds."""
        return self.usual_ns / self.usual_steps / 1e9 if self.usual_steps else None

    def _add_times(self, rank: RankData) -> None:
        steps = rank.steps
        columns = {name: steps[f"{name}_ns"] for name in _TIMES}
        patterns = sum((columns[name] != MISSING).astype(np.int64) << bit for bit, name in enumerate(OPTIONAL))
        for number in np.unique(patterns).tolist():
            rows = patterns == number
            pattern = frozenset(name for bit, name in enumerate(OPTIONAL) if number >> bit & 1)
            times = {name: int(np.maximum(column[rows], 0).sum()) for name, column in columns.items()}
            self._add_sums(pattern, int(np.count_nonzero(rows)), times)

    def _add_sums(self, pattern: frozenset[str], steps: int, times_ns: dict[str, int]) -> None:
        sums = self.by_pattern.setdefault(pattern, ClassSums())
        sums.steps += steps
        for name, value in times_ns.items():
            sums.times_ns[name] += value

    def _add_samples(self, samples: int | None) -> None:
        if samples is not None:
            self.samples = (self.samples or 0) + samples

    def measured_ns(self) -> dict[str, int]:
        """The time of each class in all steps in which it was measured."""
        found: dict[str, int] = {}
        for pattern, sums in self.by_pattern.items():
            for name, value in sums.times_ns.items():
                if name not in OPTIONAL or name in pattern:
                    found[name] = found.get(name, 0) + value
        return found

    def means_ns(self) -> dict[str, float | None]:
        """The mean of each class over the steps in which the classes were measured that most steps have."""
        pattern, sums = max(self.by_pattern.items(), key=lambda each: each[1].steps, default=(frozenset(), ClassSums()))
        return {
            name: value / sums.steps if sums.steps and (name not in OPTIONAL or name in pattern) else None
            for name, value in sums.times_ns.items()
        }


def _hang_ns(step_ns: NDArray[np.int64]) -> float:
    """The longest step in which nothing hung, in ns, by those around it."""
    return standstill_s(float(np.median(step_ns)) / 1e9) * 1e9


@dataclass
class FlushedPart:
    """The data of one flush to a rank's two files, without the lines that explain others."""

    text: bytes
    steps: int
    times_begin: int
    flush: Flush | None
    times: bytes | None = None
    """The collectives of its steps; None until they have been read and match their checksum."""


class GrowingRank:
    """One rank's files. The most recent `most_steps` steps are kept."""

    def __init__(self, label: str, most_steps: int) -> None:
        self.most_steps = most_steps
        self._label = label
        self._begin_anew()

    def _begin_anew(self) -> None:
        self.header: RankHeader | None = None
        self.sums = StepSums()
        self.end: End | None = None
        self.counters: dict[str, float] = {}
        """The latest `ContextRow` by name, NaN where a counter is not available."""
        self.device_energy, self.host_energy = EnergyMeter(), EnergyMeter()
        self.damaged = 0
        """Parts that do not match their checksum."""
        self.problem: str | None = None
        """Why the file is not read any further."""
        self.last_entry_unix_ns = 0
        self.grew_at: float | None = None
        """When the file last grew, in seconds of this process's monotonic clock; None: not since the first look."""
        self._columns: Columns = {}
        self._head = b""
        self._has_checksums = True
        self._offset = 0
        self._tail = b""
        self._rest = b""
        self._kept = b""
        self._health = HealthReadings()
        self.checkpoint_files: list[CheckpointFile] = []
        self._window: deque[FlushedPart] = deque()
        self._times_end = 0
        self._caught_up = False

    # -- reading --------------------------------------------------------------------------------------------------

    def behind(self, size: int) -> int:
        """How many bytes are still to be read."""
        return max(0, size - self._offset)

    def advance(self, size: int, read: Read) -> bool:
        """Reads up to one more chunk; returns whether there was anything new. Raises ReadingError."""
        if size < self._offset:
            self._begin_anew()
        if size == self._offset:
            self._caught_up = True
            return False
        begin = self._offset - len(self._tail)
        data = read(begin, min(size, self._offset + CHUNK_BYTES))
        if not data.startswith(self._tail):
            self._begin_anew()
            return True
        data = data[len(self._tail) :]
        if not data:
            return False
        self._offset += len(data)
        self._tail = (self._tail + data)[-_TAIL_BYTES:]
        if self._caught_up:
            self.grew_at = monotonic()
        if self.problem is None:
            self._rest += data
            try:
                self._take()
            except ValueError as error:
                self.problem, self._rest = str(error), b""
        return True

    def _take(self) -> None:
        if not self._head and not self._take_header():
            return
        if not self._has_checksums:  # an old file: whole lines are all there is
            end = self._rest.rfind(b"\n") + 1
            parts = [FlushedPart(self._rest[:end], 0, 0, None)] if end else []
            self._rest = self._rest[end:]
        else:
            parts = self._sound_parts()
            if len(self._rest) > MAX_PART_BYTES:
                self._rest = b""
                self._lost()
        self._add(parts)

    def _take_header(self) -> bool:
        line, end, rest = self._rest.partition(b"\n")
        if not rest:
            if len(line) > MAX_PART_BYTES:
                raise ValueError("the file has no header")
            return False
        self.header = decode_rank(line + end, b"", self._label).header
        self._columns = columns_of(codec.header_fields(line.decode(errors="replace"), parse_json))
        self._head = line + end
        self._has_checksums = rest.startswith(FLUSH[: len(rest)])
        if not self._has_checksums:
            self._rest = rest
        return True

    def _sound_parts(self) -> list[FlushedPart]:
        parts: list[FlushedPart] = []
        data, begin, search = self._rest, 0, 0
        while (at := data.find(b"\n" + FLUSH, search)) >= 0:
            line_end = data.find(b"\n", at + 1)
            if line_end < 0:
                break
            search = line_end
            flush = decode_flush(data[at + 1 : line_end], self._columns)
            if flush is None:
                continue  # it is part of the next part, which is damaged by it
            text = data[begin : at + 1]
            if crc32(text) == flush.text_crc32:
                if not text.startswith(self._head):
                    parts.append(FlushedPart(text, 0, self._times_end, flush))
            else:
                self._add(parts)
                parts = []
                self._lost()
            self._times_end = flush.collectives_bytes
            begin = line_end + 1
        self._rest = data[begin:]
        return parts

    def _lost(self) -> None:
        """Forgets the steps: after a damaged part, nobody knows which collectives belong to them."""
        self.damaged += 1
        self._window.clear()

    # -- what is kept ---------------------------------------------------------------------------------------------

    def _add(self, parts: list[FlushedPart]) -> None:
        if not parts:
            return
        explaining: list[bytes] = []
        for part in parts:
            found = _EXPLAINING.findall(part.text)
            if found:
                explaining += found
                part.text = _EXPLAINING.sub(b"", part.text)
            part.steps = part.text.count(_STEP) + part.text.startswith(_STEP[1:])
        kept = b"".join(explaining)
        if len(self._kept) + len(kept) <= MAX_KEPT_BYTES:
            self._kept += kept
        rank = self._decoded(parts, [], b"")
        self.sums.add(rank)
        self.end = rank.end or self.end
        self.last_entry_unix_ns = max(self.last_entry_unix_ns, rank.last_seen_unix_ns)
        for name in CONTEXT_FIELDS if len(rank.context) else ():
            self.counters[name] = float(rank.context[name][-1])
        self.device_energy.add(rank.context["time_ns"], rank.context["gpu_energy_j"])
        self.host_energy.add(rank.context["time_ns"], rank.context["host_energy_j"])
        self._health.add(rank.health)
        self.checkpoint_files = [*self.checkpoint_files, *rank.checkpoint_files][-_MOST_FILES:]
        self._window.extend(parts)
        steps = sum(part.steps for part in self._window)
        while len(self._window) > 1 and (
            steps - self._window[0].steps >= self.most_steps or len(self._window) > _MOST_PARTS
        ):
            steps -= self._window.popleft().steps

    def _decoded(self, parts: list[FlushedPart], times: list[bytes], explaining: bytes) -> RankData:
        try:
            text = b"".join([self._head, explaining, *(part.text for part in parts)])
            return decode_rank(text, b"".join(times), self._label)
        except DAMAGE as error:
            raise ValueError(str(error)) from None

    def forget_steps(self) -> None:
        """Forgets the recent steps, and keeps their sums."""
        self._window.clear()

    def recent(self, read_times: Read, seconds: float, least_steps: int) -> RankData | None:
        """The rank with its most recent steps; None before the header.

        Steps that began more than `seconds` before the last one are not kept for the next time, but for `least_steps`.
        """
        if self.header is None:
            return None
        times: list[bytes] = []
        for part in self._window:
            if part.times is None:
                part.times = _times_of(part, read_times)
            if part.times is None:
                break
            times.append(part.times)
        rank = self._decoded(list(self._window), times, self._kept)
        rank.end = self.end
        if len(rank.steps):
            self._health.drop_before(int(rank.steps["start_ns"][0]))
        rank.health = self._health.readings
        self._drop_older(rank, seconds, least_steps)
        return rank

    def _drop_older(self, rank: RankData, seconds: float, least_steps: int) -> None:
        starts = rank.steps["start_ns"]
        if not len(starts):
            return
        old = int((starts < starts[-1] - seconds * 1e9).sum())
        left = len(starts)
        while len(self._window) > 1:
            steps = self._window[0].steps
            if steps > old or left - steps < least_steps:
                break
            self._window.popleft()
            old, left = old - steps, left - steps


def _times_of(part: FlushedPart, read: Read) -> bytes | None:
    """The collectives of a part's steps; None where they are not there yet, or damaged."""
    flush = part.flush
    try:
        if flush is None:  # without checksums the collectives cannot be split by part: the first part gets all
            return read(0, MAX_PART_BYTES)
        size = flush.collectives_bytes - part.times_begin
        if not 0 <= size <= MAX_PART_BYTES:
            return None
        data = read(part.times_begin, flush.collectives_bytes) if size else b""
    except ReadingError:
        return None
    return data if crc32(data) == flush.collectives_crc32 else None
