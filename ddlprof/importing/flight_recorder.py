"""Reads the dumps of torch's Flight Recorder (`nccl_trace_rank_*`), which NCCL's watchdog writes when a job hangs.

A dump is pickled or JSON. A pickle can run any code, so only plain values are read of it: dictionaries, lists, texts
and numbers, and no class or function of any module.
"""

from __future__ import annotations

import io
import json
import pickle
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ddlprof.base.errors import UserError
from ddlprof.base.reading import ReadingError, parse_json, read_bytes
from ddlprof.importing.names import element_bytes, plain_op
from ddlprof.model.dimensions import dimension_of_name
from ddlprof.model.hang import COLLECTIVE, SCRIPT, TRAINS, GroupState, Issued, RankState, ThreadState

MAX_DUMP_BYTES = 256 << 20
_RANK = re.compile(r"(\d+)(?:\.(?:json|pkl|pickle))?$")
_NAME = re.compile(r".*(?:nccl_trace_rank_|comm_lib_trace_rank_|fr_trace_rank_).*\d")
_LATEST = 64
_LONGEST_NAME = 80
_OVER = ("completed",)
_INSTALLED = ("site-packages/", "dist-packages/", "/torch/", "/lib/python")


class _PlainUnpickler(pickle.Unpickler):
    """Makes plain values only."""

    def find_class(self, module: str, name: str) -> Any:
        raise ReadingError(f"holds {module}.{name}, and only plain values are read")

    def persistent_load(self, pid: Any) -> Any:
        raise ReadingError("refers to objects elsewhere, and only plain values are read")


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
    read = [(path, _load(path)) for path in paths]
    ranks = [(_rank_of(path, dump), path, dump) for path, dump in read]
    numbers = [rank for rank, _, _ in ranks]
    twice = next((path for number, (rank, path, _) in enumerate(ranks) if rank in numbers[:number]), None)
    if twice is not None:
        raise UserError(f"{twice}: another dump is of the same rank: name one of each")
    world_size = max(numbers) + 1
    for rank, _, dump in ranks:
        members = [member for group in _members(dump).values() for member in group]
        world_size = max(world_size, rank + 1, *(member + 1 for member in members))
    newest = max((_time(entry) for _, _, dump in ranks for entry in dump["entries"]), default=0)
    return [_state(rank, world_size, dump, newest) for rank, _, dump in sorted(ranks, key=lambda each: each[0])]


def _load(path: Path) -> dict[str, Any]:
    try:
        content = read_bytes(path, MAX_DUMP_BYTES)
        value = parse_json(content) if content[:1] == b"{" else _PlainUnpickler(io.BytesIO(content)).load()
    except ReadingError as error:
        raise UserError(f"{path}: {error}") from None
    except Exception as error:  # a torn pickle raises nearly anything
        raise UserError(f"{path}: cannot be read as a dump: {type(error).__name__}") from None
    if not isinstance(value, dict) or not isinstance(value.get("entries"), list):
        raise UserError(f"{path}: is no dump of the Flight Recorder (no list of entries in it)")
    value["entries"] = [entry for entry in value["entries"] if isinstance(entry, dict)]
    return value


def _rank_of(path: Path, dump: dict[str, Any]) -> int:
    said = dump.get("rank")
    match = _RANK.search(path.name)
    if isinstance(said, int) and said >= 0:
        return said
    if match is None or len(match[1]) > 9:
        raise UserError(f"{path}: its name does not end with the rank, as in nccl_trace_rank_3")
    return int(match[1])


def _members(dump: dict[str, Any]) -> dict[str, list[int]]:
    """The ranks of each group, by its name."""
    found: dict[str, list[int]] = {}
    config = dump.get("pg_config")
    for name, facts in config.items() if isinstance(config, dict) else ():
        ranks = facts.get("ranks") if isinstance(facts, dict) else None
        if isinstance(ranks, str):
            try:
                ranks = json.loads(ranks)
            except ValueError:
                continue
        if isinstance(ranks, list) and all(isinstance(rank, int) and 0 <= rank < 10**6 for rank in ranks):
            found[str(name)] = ranks
    return found


def _state(rank: int, world_size: int, dump: dict[str, Any], newest_ns: int) -> RankState:
    members, entries = _members(dump), dump["entries"]
    groups: dict[str, list[dict[str, Any]]] = {}
    for entry in entries:
        if not entry.get("is_p2p"):
            groups.setdefault(_group(entry)[0], []).append(entry)
    states = [
        GroupState(
            name,
            dimension_of_name(_group(of[-1])[1]),
            members.get(name, list(range(world_size)) if len(groups) == 1 else []),
            [_issued(entry, newest_ns) for entry in _by_seq(of)[-_LATEST:]],
        )
        for name, of in groups.items()
    ]
    open_ones = [entry for entry in entries if entry.get("state") not in _OVER]
    latest = min(open_ones, key=_time) if open_ones else entries[-1] if entries else {}
    lines = [f"{f.get('filename')}:{f.get('line')} {f.get('name')}" for f in _frames(latest)]
    users = [line for line in lines if not any(word in line for word in _INSTALLED)]
    thread = ThreadState("training", users[0] if users else "", "", lines)
    quiet_s = max(newest_ns - _time(latest), 0) / 1e9 if latest else 0.0
    return RankState(
        rank=rank, world_size=world_size, attempt=0, host="unknown", pid=0, unix_ns=newest_ns,
        first_unix_ns=max(newest_ns - 1, 0),
        answers_s=0.0, status=TRAINS, stands=True, quiet_s=quiet_s, since_step_s=quiet_s, limit_s=0.0, step=0,
        doing=COLLECTIVE if open_ones else SCRIPT, thread=thread, groups=states,
    )  # fmt: skip


def _by_seq(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The latest entry of each number: parts of a coalesced collective share one."""
    return [each for _, each in sorted({_seq(entry): entry for entry in entries}.items())]


def _seq(entry: dict[str, Any]) -> int:
    value = entry.get("collective_seq_id", entry.get("seq_id"))
    return value if isinstance(value, int) and 0 <= value < 2**62 else 0


def _time(entry: dict[str, Any]) -> int:
    value = entry.get("time_created_ns")
    return value if isinstance(value, int) and 0 <= value < 2**62 else 0


def _group(entry: dict[str, Any]) -> tuple[str, str]:
    """Name and description of an entry's group; older versions have the name alone."""
    name = entry.get("process_group", entry.get("pg_name"))
    parts = name if isinstance(name, (list, tuple)) and name else [name]
    return str(parts[0]), str(parts[1]) if len(parts) > 1 else ""


def _frames(entry: dict[str, Any]) -> list[dict[str, Any]]:
    frames = entry.get("frames")
    return [frame for frame in frames if isinstance(frame, dict)] if isinstance(frames, list) else []


def _issued(entry: dict[str, Any], newest_ns: int) -> Issued:
    age_s = max(newest_ns - _time(entry), 0) / 1e9
    name = str(entry.get("profiling_name") or "").rpartition(":")[2]
    return Issued(
        _seq(entry), plain_op(name) or name[:_LONGEST_NAME], _bytes(entry), None, age_s, entry.get("state") in _OVER
    )


def _bytes(entry: dict[str, Any]) -> int:
    """The bytes of the larger of inputs and outputs, as for collectives that ddlprof sees itself."""
    return max(_sum_bytes(entry.get(f"{side}_sizes"), entry.get(f"{side}_dtypes")) for side in ("input", "output"))


def _sum_bytes(sizes: Any, dtypes: Any) -> int:
    total = 0
    for number, size in enumerate(sizes if isinstance(sizes, list) else ()):
        items = 1
        for extent in size if isinstance(size, list) else ():
            items *= extent if isinstance(extent, int) and 0 <= extent < 2**40 else 0
        dtype = dtypes[number] if isinstance(dtypes, list) and number < len(dtypes) else None
        total += min(items, 2**50) * (element_bytes(dtype) or 0)
    return total
