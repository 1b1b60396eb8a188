"""What a rank writes of itself where its training stands still: `rank-R.hang.json` beside its other files.

Each rank writes its own file and reads none, so whoever looks later compares the ranks, also if some do not answer.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ddlprof.base.files import replace_whole
from ddlprof.base.reading import decode, parse_json

_FRAME = re.compile(r'File "([^"]+)", line (\d+) in (\S+)')
HANG_AFTER_S = 60.0
_USUAL_STEPS = 20

HANG_SUFFIX = ".hang.json"
LAST_WORDS_SUFFIX = ".fatal"
"""The file with the stack of a rank whose process was aborted; it is empty before, and removed at the end."""
ASKED_NAME = "hang.asked"
"""A file beside those of the ranks: when it was touched last, somebody wanted to know what all ranks do."""
MAX_HANG_BYTES = 4 << 20
"""The largest file of a rank; usual ones have a few thousand bytes."""

COLLECTIVE, DATA, CHECKPOINT, EVALUATION, COMPILING, SCRIPT = (
    "collective", "data", "checkpoint", "evaluation", "compiling", "script",
)  # fmt: skip
"""What a training thread can be doing: waiting for a collective or a batch, ..., or anything else of the script's."""
TRAINS = "trains"
"""The status of a rank that has not ended; of others it is that of `ddlprof.model.records.End`."""
BUSY_CORES = 0.2
BUSY_BYTES_PER_S = 1 << 20
"""With more of either, a rank is at work, though no hook of ours sees at what."""


def standstill_s(usual_step_s: float, least_s: float = HANG_AFTER_S) -> float:
    """After so many seconds without the end of a step a job may stand still: 20 usual steps, but at least `least_s`."""
    return max(least_s, _USUAL_STEPS * usual_step_s)


@dataclass(frozen=True)
class Issued:
    """A collective that the rank has issued. `seq`: its number in the group."""

    seq: int
    op: str
    bytes: int
    root: int | None
    age_s: float
    """The seconds from when it was issued until the file was written."""
    over: bool
    """Whether it is known to have ended."""


@dataclass(frozen=True)
class GroupState:
    """A process group, or a channel of messages (`GROUP:SENDER>RECEIVER`), with the last collectives in it."""

    name: str
    dimension: str
    """As in `ddlprof.model.dimensions`; empty if unknown."""
    members: list[int]
    """The ranks in it; empty if unknown."""
    recent: list[Issued]
    """Oldest first."""


@dataclass(frozen=True)
class ThreadState:
    """A thread of the process. `place`: the user's innermost line, as `file:line function`; empty if there is none."""

    name: str
    place: str
    calls: str
    """The function that this line calls; empty if unknown."""
    stack: list[str]
    """Its lines, innermost first."""
    state: str = ""
    """The kernel's letter: R runs, S sleeps, D waits for a disk, T is stopped."""
    waits_in: str = ""
    """The function of the kernel in which it waits; empty where it is not told."""


@dataclass(frozen=True)
class ChildState:
    """A child process. `ended`: how, if it has; else empty."""

    pid: int
    name: str
    state: str
    ended: str = ""
    waits_in: str = ""


@dataclass(frozen=True)
class RankState:
    """What a rank does. Times are unix times in nanoseconds or seconds."""

    rank: int
    world_size: int
    attempt: int
    host: str
    pid: int
    unix_ns: int
    """When this was written."""
    first_unix_ns: int
    """When the rank first wrote of this standstill."""
    answers_s: float
    """Within so many seconds a rank that can write does so, once another one has asked."""
    status: str
    stands: bool
    """Whether it saw nothing happen for longer than `limit_s`."""
    quiet_s: float
    """The seconds since anything happened: any event of its hooks."""
    since_step_s: float
    """The seconds since a step ended."""
    limit_s: float
    step: int
    """The number of steps that have ended."""
    doing: str
    thread: ThreadState
    """The training thread."""
    groups: list[GroupState] = field(default_factory=list)
    threads: list[ThreadState] = field(default_factory=list)
    """Other threads in the user's code."""
    children: list[ChildState] = field(default_factory=list)
    cores: float | None = None
    """The processor cores that it and its children used or waited for since the look before; like the next, None:
    unknown."""
    io_bytes_per_s: float | None = None
    device: str = ""
    """What the accelerator does: `waits` has not passed what it was given, `idle` has; empty: none, or unknown."""
    full_disks: list[str] = field(default_factory=list)
    """Folders that the rank uses on file systems without space."""
    peers: dict[str, str] = field(default_factory=dict)
    """What this machine's kernel says of the processes of other ranks: `stopped`, `gone`, `zombie`, `disk`."""
    error: str = ""
    """The exception that ended it."""
    error_in_collective: bool = False
    stood_at: str = ""
    """Of a rank that an error has ended: its line in its last standstill, if no step has ended since."""
    resumed: bool = False
    """Whether it went on afterwards."""

    def write(self, folder: Path) -> None:
        """Replaces the rank's file atomically. Raises OSError where that fails."""
        text = json.dumps(asdict(self), ensure_ascii=False, allow_nan=False) + "\n"
        replace_whole(folder / f"rank-{self.rank}{HANG_SUFFIX}", text)


ABORTED = "aborted"
"""The status of a rank that left nothing but its stack."""


KILLED = "killed"
"""The status of a rank whose process was killed by a signal that it could not catch, as its launcher saw."""
KILLED_WORDS = "Killed by SIGKILL"


def note_killed(run: Path, rank: int) -> None:
    """Writes into the file of the last words of a rank, in its latest attempt, that it was killed; if it has none."""
    files = run.glob(f"attempt-*/rank-{rank}{LAST_WORDS_SUFFIX}")
    latest = max(files, key=lambda file: int(file.parent.name.rpartition("-")[2]), default=None)
    if latest is not None and not latest.stat().st_size:
        latest.write_text(f"{KILLED_WORDS}\n", encoding="utf-8")


def last_words(rank: int, world_size: int, attempt: int, text: str) -> RankState:
    """The state of a rank whose process was aborted, by what Python wrote then: the stack, innermost first."""
    main = text.rpartition("hread 0x")[2]  # the thread of the script is the last one
    lines = [f"{file}:{line} {function}" for file, line, function in _FRAME.findall(main)]
    users = [line for line in lines if not any(each in line for each in ("site-packages", "/lib/python", "/ddlprof/"))]
    thread = ThreadState("training", users[0] if users else "", "", lines)
    first = text.partition("\n")[0][:200]
    status = KILLED if first == KILLED_WORDS else ABORTED
    return RankState(
        rank, world_size, attempt, "", 0, 0, 0, 0.0, status, False, 0.0, 0.0, 0.0, 0, SCRIPT, thread, error=first,
        error_in_collective=any("torch/distributed" in line for line in lines),
    )  # fmt: skip


def aborted(state: RankState, last: RankState) -> RankState:
    """The last state of a rank, with how its process was aborted afterwards."""
    return replace(
        state, status=last.status, thread=last.thread, error=last.error, error_in_collective=last.error_in_collective
    )


def decode_state(content: bytes | str | dict[str, Any]) -> RankState:
    """The state in a file. Raises ReadingError."""
    value = content if isinstance(content, dict) else parse_json(content)
    return decode(RankState, value)
