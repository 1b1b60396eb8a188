"""Finds which traces belong to one job, and which rank each of them is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ddlprof.base.errors import UserError, refusing
from ddlprof.base.units import count
from ddlprof.importing.trace import RankTrace

SUFFIXES = (".json", ".json.gz")


@dataclass(frozen=True)
class ImportedJob:
    """The traces of one job by rank."""

    ranks: dict[int, RankTrace]
    world_size: int
    nodes: dict[int, str]
    """A name for the machine of each rank; different machines have different names."""
    notes: list[str] = field(default_factory=list)


def trace_files(paths: Sequence[Path]) -> list[tuple[Path, bool]]:
    """The given files, and the files in given folders, each with whether it was found in a folder."""
    found: dict[Path, bool] = {}
    for path in paths:
        if not path.is_dir():
            found[path] = False
            continue
        with refusing(f"{path}: cannot be read"):
            inside = sorted(
                (each for each in path.iterdir() if each.name.endswith(SUFFIXES) and each.is_file()), key=_in_order
            )
        if not inside:
            raise UserError(f"{path}: no traces in this folder (*.json, *.json.gz)")
        for each in inside:
            found.setdefault(each, True)
    return list(found.items())


def as_job(traces: Sequence[RankTrace]) -> ImportedJob:
    """Numbers the ranks. Raises UserError if two traces are of one rank, or of jobs of different sizes."""
    sizes = {trace.about.world_size: trace for trace in traces if trace.about.world_size is not None}
    if len(sizes) > 1:
        (one, first), (two, second) = list(sizes.items())[:2]
        raise UserError(
            f"{first.path} is of a job of {count(one, 'rank')} and {second.path} of one of {count(two, 'rank')}: "
            "name the traces of one job"
        )
    ranks: dict[int, RankTrace] = {}
    for trace in traces:
        rank = trace.about.rank
        if rank is None:
            continue
        if rank in ranks:
            raise UserError(f"{ranks[rank].path} and {trace.path} are both of rank {rank}: name one trace of each rank")
        ranks[rank] = trace
    unnumbered = sorted((trace for trace in traces if trace.about.rank is None), key=lambda t: _in_order(t.path))
    _require_processes(unnumbered)
    free = iter(number for number in range(len(traces) + len(ranks)) if number not in ranks)
    numbered = {next(free): trace for trace in unnumbered}
    notes = []
    if numbered:
        listed = ", ".join(f"rank {rank} is {trace.path.name}" for rank, trace in list(numbered.items())[:4])
        more = f" and {len(numbered) - 4} more" if len(numbered) > 4 else ""
        notes.append(f"traces that name no rank are numbered in the order of their names: {listed}{more}")
    ranks = dict(sorted({**ranks, **numbered}.items()))
    world_size = next(iter(sizes), None) or 1
    if max(ranks) >= world_size:
        world_size = max(ranks) + 1
    return ImportedJob(ranks, world_size, _nodes(ranks, notes), notes)


def _require_processes(traces: Sequence[RankTrace]) -> None:
    """Raises UserError if two traces are of one process, one after the other: cycles of a profiler's schedule."""
    latest: dict[tuple[str | None, str], RankTrace] = {}
    for trace in sorted(traces, key=lambda each: each.begin_ns):
        if trace.process is None:
            continue
        before = latest.setdefault((trace.about.host, trace.process), trace)
        if before.end_ns <= trace.begin_ns and before is not trace:
            raise UserError(
                f"{before.path} and {trace.path} are of one process, one after the other (cycles of a schedule): name "
                "one of them"
            )


def _in_order(path: Path) -> list[tuple[int, str]]:
    """A sort key by which rank10 comes after rank2."""
    pieces = re.findall(r"\d+|\D+", str(path))
    return [(len(piece), piece) if piece.isdigit() else (0, piece) for piece in pieces]


def _nodes(ranks: dict[int, RankTrace], notes: list[str]) -> dict[int, str]:
    """The machine of each rank: the host's name, or without one, ranks with consecutive devices are on one machine."""
    if all(trace.about.host for trace in ranks.values()):
        return {rank: trace.about.host or "" for rank, trace in ranks.items()}
    if len(ranks) == 1:
        return dict.fromkeys(ranks, "unknown")
    if all(trace.device is not None for trace in ranks.values()):
        notes.append("the traces name no host: which ranks share a machine is told by the numbers of their devices")
        return {rank: f"from rank {rank - (trace.device or 0)}" for rank, trace in ranks.items()}
    notes.append("the traces name no host: all ranks are taken to share one machine")
    return dict.fromkeys(ranks, "unknown")


def job_name(paths: Sequence[Path]) -> str:
    """The short name of the job: that of the folder or of the first file."""
    name = paths[0].resolve().name if paths[0].is_dir() else paths[0].name
    for suffix in (".gz", ".json", ".trace", ".pt"):
        name = name.removesuffix(suffix)
    return name or "trace"
