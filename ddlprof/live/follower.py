"""Follows a run: new attempts, ranks that appear late, files that grow or are replaced, and the manifest."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic

from ddlprof.base.errors import UserError
from ddlprof.base.reading import ReadingError
from ddlprof.live.growing import GrowingRank
from ddlprof.model.hang import RankState
from ddlprof.model.manifest import Manifest, decode_manifest
from ddlprof.model.records import Note
from ddlprof.store import RankData
from ddlprof.store.hangs import read_standing
from ddlprof.store.parts import RankFiles, RunPart, belongs_elsewhere, find_parts, of_one_job

RECENT_S = 60.0
"""The recent steps are those of the last minute, within the bounds below."""
LEAST_STEPS = 30
"""The fewest recent steps, where steps are slow."""
MOST_STEPS, MOST_OF_ALL_RANKS = 2000, 16_000
"""The most recent steps of a rank, and of all ranks together, where steps are fast."""
_READ_AT_ONCE_BYTES = 32 << 20
"""The most bytes that are read before the view is shown again."""
_UNREADABLE = "cannot be read: "
QUIET_S, STANDING_EVERY_S = 5.0, 10.0
"""After so long without a step, what ranks write when they stand still is read, and then so often."""
STANDING_SHARE = 10
"""It is read at most for a tenth of the time: a thousand ranks take seconds."""


@dataclass(frozen=True)
class Followed:
    """A rank of the latest attempt, and its recent steps."""

    growing: GrowingRank
    recent: RankData


class RunFollower:
    """One run directory, or URL. Whatever cannot be read yet is tried again at the next `advance`."""

    def __init__(self, path: str | Path) -> None:
        self.path = path
        self.manifest: Manifest | None = None
        self.notes: list[Note] = []
        self.behind_bytes = self.size_bytes = 0
        """The bytes of the files that are still to be read, and the bytes of the files in all."""
        self._ranks: dict[tuple[int, int], GrowingRank] = {}
        self._where: dict[tuple[int, int], tuple[RunPart, RankFiles]] = {}
        self._unreadable: dict[str, str] = {}
        self._nodes: dict[str, int] = {}
        self.standing: list[RankState] = []
        """What ranks of the latest attempt wrote when they stood still; empty while steps end."""
        self._steps: int | None = None
        self._stepped_at = self._look_next_at = -math.inf

    @property
    def found(self) -> bool:
        """Whether a run has appeared there."""
        return self.manifest is not None or bool(self._where)

    @property
    def unreadable_files(self) -> int:
        """How many files could not be read at the last look."""
        return len(self._unreadable)

    @property
    def attempts(self) -> list[int]:
        """The attempts of the job, in order."""
        return sorted({attempt for attempt, _ in self._ranks})

    @property
    def ranks_by_attempt(self) -> list[list[GrowingRank]]:
        """The ranks of each attempt, in order."""
        return [[rank for (of, _), rank in sorted(self._ranks.items()) if of == each] for each in self.attempts]

    def advance(self) -> bool:
        """Reads more of the files; returns whether there was anything new. Raises UserError for an unreachable URL."""
        try:
            parts = find_parts(self.path)
        except OSError as error:  # a network file system that is away for a moment
            self._unreadable[str(self.path)] = error.strerror or str(error)
            return False
        self._unreadable = {}
        self._read_manifest(parts)
        self._where = {}
        for part in parts:
            for files in part.ranks:
                self._where.setdefault((files.attempt, files.rank), (part, files))
        for key in self._ranks.keys() - self._where.keys():
            del self._ranks[key]  # removed, or the folder is another run's by now
        was_behind = self.behind_bytes > 0
        changed = self._read_ranks()
        changed |= self._read_standing(parts, was_behind)
        latest = max(self.attempts, default=0)
        for (attempt, _), rank in self._ranks.items():
            if attempt != latest:
                rank.forget_steps()
        return changed

    def _read_manifest(self, parts: list[RunPart]) -> None:
        """The manifest, from the part that has one. Raises UserError where the parts are separate runs."""
        jobs = set()
        for part in parts:
            if part.manifest is None:
                continue
            try:
                self.manifest = decode_manifest(next(part.folder.contents([part.manifest])))
            except ValueError as error:
                self._unreadable[part.manifest] = str(error)
            else:
                jobs.add(self.manifest.job_id)
        if len(jobs) > 1:
            raise UserError(f"{self.path} holds several runs: name one, as in {parts[-1].name}")

    def _read_ranks(self) -> bool:
        changed, reader = False, _Reader(_READ_AT_ONCE_BYTES)
        most_steps = max(2 * LEAST_STEPS, min(MOST_STEPS, MOST_OF_ALL_RANKS // max(len(self._where), 1)))
        self.behind_bytes = self.size_bytes = 0
        for key, (part, files) in self._where.items():
            rank = self._ranks.setdefault(key, GrowingRank(files.label, most_steps))
            rank.most_steps = most_steps
            sizes = files.text_size, files.size - files.text_size
            read = [partial(reader.piece, part, name) for name in (files.text, files.steps)]
            while reader.left_bytes > 0 and rank.advance(sizes[0], read[0], sizes[1], read[1]):
                changed = True
            self.behind_bytes += rank.behind(*sizes)
            self.size_bytes += files.size
            for label, problem in zip((files.label, files.steps_label), rank.unreadable, strict=True):
                if problem is not None:
                    self._unreadable[label] = problem
        return changed

    def _read_standing(self, parts: list[RunPart], was_behind: bool) -> bool:
        """Reads what ranks say of a standstill, if there seems to be one; returns whether that changed."""
        before, now_s = self.standing, monotonic()
        steps = sum(rank.sums.steps for rank in self._ranks.values())
        if steps != self._steps and self._steps is not None and not was_behind:
            self._stepped_at, self.standing = now_s, []
        self._steps = steps
        if now_s - self._stepped_at >= QUIET_S and now_s >= self._look_next_at:
            with suppress(UserError):  # a bucket that is away for a moment
                self.standing = read_standing(parts)[0]
            self._look_next_at = now_s + max(STANDING_EVERY_S, STANDING_SHARE * (monotonic() - now_s))
        return self.standing != before

    def recent(self) -> list[Followed]:
        """The ranks of the latest attempt with their recent steps; files of other jobs are left out and noted."""
        latest = max(self.attempts, default=0)
        said = [(source, why.removeprefix(_UNREADABLE)) for source, why in self._unreadable.items()]
        self.notes = [Note(source, f"{_UNREADABLE}{why}") for source, why in said]
        found = []
        for key, growing in sorted(self._ranks.items()):
            followed = self._followed(growing, self._where[key][1]) if key[0] == latest else None
            if followed is not None:
                found.append(followed)
        try:
            kept, _, foreign = of_one_job([each.recent for each in found], self.manifest)
        except ValueError as error:
            raise UserError(f"{self.path}: {error}") from None
        self.notes += foreign
        self._number_nodes()
        for each in found:
            each.recent.node = self._nodes[each.recent.header.node_id]
        return [each for each in found if any(each.recent is rank for rank in kept)]

    def _followed(self, growing: GrowingRank, files: RankFiles) -> Followed | None:
        try:
            recent = growing.recent(RECENT_S, LEAST_STEPS)
        except ValueError as error:
            self.notes.append(Note(files.label, f"{_UNREADABLE}{error}"))
            return None
        elsewhere = belongs_elsewhere(files, recent.header) if recent is not None else None
        if elsewhere is not None:
            self.notes.append(elsewhere)
        return Followed(growing, recent) if recent is not None and elsewhere is None else None

    def _number_nodes(self) -> None:
        """Numbers the machines by the lowest rank on each; a machine keeps its number over restarts."""
        for _, rank in sorted(self._ranks.items()):
            if rank.header is not None:
                self._nodes.setdefault(rank.header.node_id, len(self._nodes))


@dataclass
class _Reader:
    """Reads pieces of files, and counts down what may be read before the view is shown again."""

    left_bytes: int

    def piece(self, part: RunPart, name: str | None, begin: int, end: int) -> bytes:
        """The bytes of a file of a run. Raises ReadingError where they cannot be read just now."""
        if name is None:
            return b""
        try:
            found = part.folder.piece(name, begin, end - begin)
        except UserError as error:
            raise ReadingError(str(error)) from None
        if isinstance(found, ReadingError):
            raise found
        self.left_bytes -= len(found)
        return found
