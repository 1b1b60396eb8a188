"""Follows one rank's files as they grow: what has been read once is not read again, and memory is bounded.

A part of the text counts once the line with its checksum is there, and a block of steps once it is whole; what comes
after may be half written. (In a shared run, which does not grow, the text has no checksums: whole lines count.) Kept
are the most recent parts and blocks, the few lines that explain them, and sums over all steps. Files that do not go on
as they were have been replaced, and are read from their beginning.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic

from ddlprof.base.reading import ReadingError
from ddlprof.live.readings import EnergyMeter, HealthReadings
from ddlprof.live.step_sums import StepSums
from ddlprof.model import blocks
from ddlprof.model.blocks import Block, BlockStream
from ddlprof.model.checkpoint_files import CheckpointFile
from ddlprof.model.records import End, RankHeader
from ddlprof.store import RankData
from ddlprof.store.flushes import FLUSH, take_parts
from ddlprof.store.lines import Head, read_header
from ddlprof.store.numbers import DAMAGE
from ddlprof.store.rankfile import rank_of_blocks
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
_TAIL_BYTES = 256
"""The last bytes read, which are compared to detect a replaced file; a line of checksums, or a row of a step with the
moment of its start, is shorter."""
_EXPLAINING = re.compile(rb'^\["[gltbni]",[^\n]*\n', re.MULTILINE)
"""Lines that later ones refer to, or that hold for the whole run: shapes, sources, clocks, calibration, notes."""


@dataclass
class GrowingFile:
    """One file. `rest`: what was read and is not taken yet."""

    offset: int = 0
    rest: bytes = b""
    caught_up: bool = False
    """Whether all that was there has been read at some look."""
    problem: str | None = None
    """Why it could not be read when that was tried last."""
    _tail: bytes = b""

    def behind(self, size: int) -> int:
        """How many bytes are still to be read; none of a file that cannot be, as nobody is to wait for it."""
        return max(0, size - self.offset) if self.problem is None else 0

    def advance(self, size: int, read: Read) -> bool | None:
        """Reads up to one more chunk; returns whether there was any, None if the file was replaced."""
        if size < self.offset:
            return None
        if size == self.offset > 0:
            self.caught_up = True
            return False
        try:  # what seems to be empty may be no file
            data = read(self.offset - len(self._tail), min(size, self.offset + CHUNK_BYTES))
        except ReadingError as error:
            self.problem = str(error)
            return False
        self.problem = None
        self.caught_up |= not size
        if not data.startswith(self._tail):
            return None
        data = data[len(self._tail) :]
        self.offset += len(data)
        self._tail = (self._tail + data)[-_TAIL_BYTES:]
        self.rest += data
        return bool(data)


@dataclass(frozen=True)
class _Text:
    """What was written to the text at once."""

    content: bytes
    steps_before: int
    """How many steps had been read before it."""


def _steps_of(block: Block) -> int:
    return 0 if block.kind == blocks.SUMS else block.rows


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
        """Parts of the text that do not match their checksum, and blocks that are missing."""
        self.problem: str | None = None
        """Why the files are not read any further."""
        self.last_entry_unix_ns = 0
        self.grew_at: float | None = None
        """When a file last grew, in seconds of this process's monotonic clock; None: not since the first look."""
        self._head: Head | None = None
        self._head_line = b""
        self._has_checksums = True
        self._text, self._blocks = GrowingFile(), GrowingFile()
        self._stream = BlockStream({})
        self._kept = b""
        self._health = HealthReadings()
        self.checkpoint_files: list[CheckpointFile] = []
        self._window: deque[Block] = deque()
        """The recent blocks."""
        self._texts: deque[_Text] = deque()
        self._steps_in_blocks = 0

    # -- reading --------------------------------------------------------------------------------------------------

    @property
    def unreadable(self) -> tuple[str | None, str | None]:
        """Why the text and the steps could not be read when that was tried last; None where they could."""
        return self._text.problem or self.problem, self._blocks.problem

    def behind(self, text_size: int, steps_size: int) -> int:
        """How many bytes of the two files are still to be read."""
        if self.problem is not None:
            return 0
        return self._text.behind(text_size) + self._blocks.behind(steps_size)

    def advance(self, text_size: int, read_text: Read, steps_size: int, read_steps: Read) -> bool:
        """Reads up to one more chunk of each file; returns whether there was anything new."""
        found = [self._text.advance(text_size, read_text), self._blocks.advance(steps_size, read_steps)]
        if None in found:
            self._begin_anew()
            return True
        if not any(found):
            return False
        if self._text.caught_up and self._blocks.caught_up:
            self.grew_at = monotonic()
        if self.problem is None:
            try:
                self._take()
            except ValueError as error:
                self.problem = str(error)
        if self.problem is not None:
            self._text.rest = self._blocks.rest = b""
        return True

    def _take(self) -> None:
        if self._head is None and not self._take_header():
            return
        texts = self._sound_parts()
        if max(len(self._text.rest), len(self._blocks.rest)) > MAX_PART_BYTES + CHUNK_BYTES:
            self._text.rest = self._blocks.rest = b""
            self.damaged += 1
        lost = self._stream.lost
        found, end = self._stream.take(self._blocks.rest)
        self.damaged += self._stream.lost - lost
        found = [each.copied() for each in found]
        self._blocks.rest = self._blocks.rest[end:]
        if texts or found:
            self._add(texts, found)

    def _take_header(self) -> bool:
        line, end, rest = self._text.rest.partition(b"\n")
        if len(rest) < len(FLUSH):
            if len(line) > MAX_PART_BYTES:
                raise ValueError("the file has no header")
            return False
        head = read_header(line + end, self._label)
        self.header = head.header
        self._head, self._head_line = head, line + end
        self._stream = BlockStream(head.layouts)
        self._has_checksums = rest.startswith(FLUSH)
        return True

    def _sound_parts(self) -> list[bytes]:
        """Takes the parts of the text whose checksum is there; of the first one, what comes after the header."""
        assert self._head is not None
        data = self._text.rest
        if not self._has_checksums:
            end = data.rfind(b"\n") + 1
            self._text.rest = data[end:]
            return [data[:end].removeprefix(self._head_line)]
        parts, end = take_parts(data, self._head.columns)
        self._text.rest = data[end:]
        sound = [part.text.removeprefix(self._head_line) for part in parts if part.sound]
        self.damaged += len(parts) - len(sound)
        return sound

    # -- what is kept ---------------------------------------------------------------------------------------------

    def _add(self, texts: list[bytes], new: list[Block]) -> None:
        for text in texts:
            kept = b"".join(_EXPLAINING.findall(text))
            if len(self._kept) + len(kept) <= MAX_KEPT_BYTES:
                self._kept += kept
            self._texts.append(_Text(_EXPLAINING.sub(b"", text), self._steps_in_blocks))
        rank = self._decoded(texts, new)
        self.sums.add(rank)
        self.end = rank.end or self.end
        self.last_entry_unix_ns = max(self.last_entry_unix_ns, rank.last_seen_unix_ns)
        for name in CONTEXT_FIELDS if len(rank.context) else ():
            self.counters[name] = float(rank.context[name][-1])
        self.device_energy.add(rank.context["time_ns"], rank.context["gpu_energy_j"])
        self.host_energy.add(rank.context["time_ns"], rank.context["host_energy_j"])
        self._health.add(rank.health)
        self.checkpoint_files = [*self.checkpoint_files, *rank.checkpoint_files][-_MOST_FILES:]
        self._window.extend(new)
        self._steps_in_blocks += sum(map(_steps_of, new))
        steps = sum(map(_steps_of, self._window))
        while len(self._window) > 1 and (
            steps - _steps_of(self._window[0]) >= self.most_steps or len(self._window) > _MOST_PARTS
        ):
            steps -= _steps_of(self._window.popleft())
        self._drop_texts(steps)

    def _drop_texts(self, steps: int) -> None:
        """Drops parts of the text that came before all of the last `steps` steps, but for the last of them."""
        first = self._steps_in_blocks - steps
        while len(self._texts) > 1 and (self._texts[1].steps_before < first or len(self._texts) > _MOST_PARTS):
            self._texts.popleft()

    def _decoded(self, texts: list[bytes], found: Sequence[Block]) -> RankData:
        assert self._head is not None
        try:
            return rank_of_blocks(self._head, b"".join([self._head_line, *texts]), found, self._label)
        except DAMAGE as error:
            raise ValueError(str(error)) from None

    def forget_steps(self) -> None:
        """Forgets the recent steps, and keeps their sums."""
        self._window.clear()
        self._texts.clear()

    def recent(self, seconds: float, least_steps: int) -> RankData | None:
        """The rank with its most recent steps; None before the header.

        Steps that began more than `seconds` before the last one are not kept for the next time, but for `least_steps`.
        """
        if self._head is None:
            return None
        rank = self._decoded([self._kept, *(text.content for text in self._texts)], self._window)
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
            steps = _steps_of(self._window[0])
            if steps > old or left - steps < least_steps:
                break
            self._window.popleft()
            old, left = old - steps, left - steps
        self._drop_texts(left)
