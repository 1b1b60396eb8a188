"""Reads the dumps of torch's Flight Recorder (`nccl_trace_rank_*`), which NCCL's watchdog writes when a job hangs.

A dump is pickled or JSON. A pickle can run any code, so only plain values are read of it: dictionaries, lists, texts
and numbers, and no class or function of any module. A value of another type than torch writes is an error: without its
entry another rank might be blamed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Annotated, Any

from ddlprof.base.errors import UserError, naming
from ddlprof.base.plain_pickle import MOST_INSTRUCTIONS, parse_plain_pickle
from ddlprof.base.reading import NOT_NEGATIVE, Interval, Length, ReadingError, decode, parse_json, read_bytes
from ddlprof.importing.names import element_bytes, plain_op
from ddlprof.model.dimensions import dimension_of_name
from ddlprof.model.hang import COLLECTIVE, SCRIPT, TRAINS, GroupState, Issued, RankState, ThreadState

MAX_DUMP_BYTES = 256 << 20
MOST_RANKS = 100_000
MOST_GROUPS = 256
"""The most process groups in which one rank has collectives."""
MOST_MEMBERS = 300_000
"""The most members of these together: what is made of a dump is read again up to `MAX_HANG_BYTES`."""
_RANK = re.compile(r"(\d+)(?:\.(?:json|pkl|pickle))?$", re.ASCII)
_NAME = re.compile(r".*(?:nccl_trace_rank_|comm_lib_trace_rank_|fr_trace_rank_).*\d")
_LATEST = 64
_MOST_FRAMES = 200
_LONGEST_NAME = 80
_LARGEST_BYTES = 1 << 60
_OVER = ("completed",)
_INSTALLED = ("site-packages/", "dist-packages/", "/torch/", "/lib/python")

_Rank = Annotated[int, Interval(0, MOST_RANKS - 1)]
_Count = Annotated[int, NOT_NEGATIVE]
_Name = Annotated[str, Length(0, 1000)]
_Sizes = Annotated[tuple[Annotated[tuple[_Count, ...], Length(0, 64)], ...], Length(0, 10_000)]
_Types = Annotated[tuple[_Name, ...], Length(0, 10_000)]


@dataclass(frozen=True)
class _Entry:
    """A collective as the recorder keeps it. Frames are checked only where they are shown."""

    pg_name: _Name | tuple[_Name, ...] = ""
    """In some versions with the description of the group."""
    process_group: _Name | tuple[_Name, ...] | None = None
    seq_id: _Count = 0
    collective_seq_id: _Count | None = None
    is_p2p: bool = False
    state: _Name = ""
    profiling_name: _Name = ""
    time_created_ns: _Count = 0
    input_sizes: _Sizes = ()
    input_dtypes: _Types = ()
    output_sizes: _Sizes = ()
    output_dtypes: _Types = ()
    frames: Any = None

    @property
    def group(self) -> tuple[str, str]:
        """Name and description of the group; older versions have the name alone."""
        name = self.pg_name if self.process_group is None else self.process_group
        parts = (name,) if isinstance(name, str) else (*name, "")
        return parts[0], parts[1] if len(parts) > 1 else ""

    @property
    def seq(self) -> int:
        return self.seq_id if self.collective_seq_id is None else self.collective_seq_id

    @property
    def bytes(self) -> int:
        """The bytes of the larger of inputs and outputs, as for collectives that ddlprof sees itself."""
        sides = ((self.input_sizes, self.input_dtypes), (self.output_sizes, self.output_dtypes))
        return min(max(_sum_bytes(*side) for side in sides), _LARGEST_BYTES)


@dataclass(frozen=True)
class _Frame:
    filename: Annotated[str, Length(0, 4096)] = ""
    line: _Count = 0
    name: _Name = ""


@dataclass(frozen=True)
class _Group:
    ranks: Annotated[str, Length(0, 1_000_000)] | Annotated[tuple[_Rank, ...], Length(0, MOST_RANKS)] | None = None


@dataclass(frozen=True)
class _Content:
    """A dump as it is in its file."""

    entries: tuple[_Entry, ...]
    rank: _Rank | None = None
    pg_config: dict[str, _Group] = field(default_factory=dict)


@dataclass(frozen=True)
class _Dump:
    """What is needed of a dump."""

    rank: int
    members: dict[str, list[int]]
    """The ranks of each group, by its name."""
    groups: dict[str, tuple[str, list[_Entry]]]
    """Description and latest collectives of each group with any, by its name."""
    latest: _Entry | None
    """Where the rank is: its oldest collective that is not over, or else its last one."""
    is_over: bool
    frames: list[_Frame]
    """Of `latest`."""
    newest_ns: int


def is_dump(path: Path) -> bool:
    """Whether a file is named as torch names dumps."""
    return _NAME.fullmatch(path.name.removesuffix(".json")) is not None


def dumps_in(paths: Sequence[Path]) -> list[Path]:
    """The dumps among these files, and in these folders."""
    found: list[Path] = []
    for path in paths:
        inside = sorted(path.iterdir()) if path.is_dir() else [path]
        found += [each for each in inside if is_dump(each) and each.is_file()]
    return found


def read_dumps(paths: Sequence[Path]) -> list[RankState]:
    """The state of each rank, by its dump. Raises UserError where one cannot be read."""
    dumps: dict[int, _Dump] = {}
    for path in paths:
        with naming(path):
            dump = _dump(path, _content(path))
        if dump.rank in dumps:
            raise UserError(f"{path}: another dump is of the same rank: name one of each")
        dumps[dump.rank] = dump
    members = {member for dump in dumps.values() for group in dump.members.values() for member in group}
    world_size = max({*dumps, *members}) + 1
    newest_ns = max(dump.newest_ns for dump in dumps.values())
    return [_state(dump, world_size, newest_ns) for _, dump in sorted(dumps.items())]


def _content(path: Path) -> _Content:
    content = read_bytes(path, MAX_DUMP_BYTES)
    value = parse_json(content, MOST_INSTRUCTIONS) if content[:1] == b"{" else parse_plain_pickle(content)
    if not isinstance(value, dict) or not isinstance(value.get("entries"), list):
        raise ReadingError("is no dump of the Flight Recorder (no list of entries in it)")
    return decode(_Content, value)


def _dump(path: Path, content: _Content) -> _Dump:
    groups: dict[str, list[_Entry]] = {}
    for entry in content.entries:
        if not entry.is_p2p:
            groups.setdefault(entry.group[0], []).append(entry)
    if len(groups) > MOST_GROUPS:
        raise ReadingError(f"collectives of {len(groups):,} process groups; at most {MOST_GROUPS} are read")
    members = _members(content.pg_config)
    if sum(len(members.get(name, ())) for name in groups) > MOST_MEMBERS:
        raise ReadingError(f"process groups of more than {MOST_MEMBERS:,} ranks together")
    open_ones = [entry for entry in content.entries if entry.state not in _OVER]
    latest = min(open_ones, key=lambda each: each.time_created_ns) if open_ones else (*content.entries[-1:], None)[0]
    frames = latest.frames[:_MOST_FRAMES] if latest is not None and isinstance(latest.frames, (list, tuple)) else []
    return _Dump(
        rank=_rank_in_name(path) if content.rank is None else content.rank,
        members=members,
        groups={name: (of[-1].group[1], _by_seq(of)[-_LATEST:]) for name, of in groups.items()},
        latest=latest,
        is_over=not open_ones,
        frames=decode(list[_Frame], frames, "frames"),
        newest_ns=max((entry.time_created_ns for entry in content.entries), default=0),
    )


def _rank_in_name(path: Path) -> int:
    match = _RANK.search(path.name)
    if match is None or len(match[1]) > 9:
        raise ReadingError("its name does not end with the rank, as in nccl_trace_rank_3")
    return decode(_Rank, int(match[1]), "the rank in its name")


def _members(config: dict[str, _Group]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for name, group in config.items():
        ranks = group.ranks
        with suppress(ReadingError):  # a text in which ranks are left out: then they are not known
            if ranks is not None:
                found[name] = decode(list[_Rank], parse_json(ranks) if isinstance(ranks, str) else list(ranks))
    return found


def _state(dump: _Dump, world_size: int, newest_ns: int) -> RankState:
    everybody = list(range(world_size)) if len(dump.groups) == 1 else []
    states = [
        GroupState(
            name,
            dimension_of_name(description),
            dump.members.get(name, everybody),
            [_issued(entry, newest_ns) for entry in latest],
        )
        for name, (description, latest) in dump.groups.items()
    ]
    lines = [f"{frame.filename}:{frame.line} {frame.name}" for frame in dump.frames]
    users = [line for line in lines if not any(word in line for word in _INSTALLED)]
    thread = ThreadState("training", users[0] if users else "", "", lines)
    quiet_s = (newest_ns - dump.latest.time_created_ns) / 1e9 if dump.latest is not None else 0.0
    return RankState(
        rank=dump.rank, world_size=world_size, attempt=0, host="unknown", pid=0, unix_ns=newest_ns,
        first_unix_ns=max(newest_ns - 1, 0),
        answers_s=0.0, status=TRAINS, stands=True, quiet_s=quiet_s, since_step_s=quiet_s, limit_s=0.0, step=0,
        doing=SCRIPT if dump.is_over else COLLECTIVE, thread=thread, groups=states,
    )  # fmt: skip


def _by_seq(entries: list[_Entry]) -> list[_Entry]:
    """The latest entry of each number: parts of a coalesced collective share one."""
    return [each for _, each in sorted({entry.seq: entry for entry in entries}.items())]


def _issued(entry: _Entry, newest_ns: int) -> Issued:
    age_s = (newest_ns - entry.time_created_ns) / 1e9
    name = entry.profiling_name.rpartition(":")[2]
    return Issued(entry.seq, plain_op(name) or name[:_LONGEST_NAME], entry.bytes, None, age_s, entry.state in _OVER)


def _sum_bytes(sizes: Sequence[Sequence[int]], dtypes: Sequence[str]) -> int:
    """Types that are missing or not known have no bytes."""
    return sum(prod(size) * (element_bytes(dtype) or 0) for size, dtype in zip(sizes, dtypes, strict=False))
