"""Which experiments run now: parts of at most so many minutes, what a file of results holds, and what is answered."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from scripts.bench.gpu.experiment import Experiment, Row

PART_S = 9 * 60
START_S = 25
"""Seconds of a part beside its experiments: installing, importing torch, and writing."""
NO_TIME = "no time was left"
QUESTIONS: Mapping[str, str] = {
    "a": "overhead at 50, 500 and 5,000 kernels a step, and for networks",
    "b": "FSDP2 and DDP at world size 1 with NCCL: host cost and peak memory with and without",
    "c": "tests/gpu: clock, copies, streams, graphs, counters, probe",
    "d": "predicted against measured steps of ten models, and what probe measures beside the shipped figures",
    "e": "device lag as a detector of launch-bound steps, beside Kineto's idle share",
    "f": "classes of a step beside `ddlprof import` of Kineto's trace of the same run",
    "g": "captures of every kind beside the helper's queries, in relaxed mode and without",
    "h": "memory expected against that of ten models",
    "i": "fuse's sweep and sparsity on CUDA, under autocast",
    "j": "compilation in all modes, and fused AdamW with a GradScaler",
    "k": "the rest: windows, loaders, copies, communication, faults, several GPUs, Nsight",
}
"""In the order of what is worth most to know."""


def parts(experiments: Sequence[Experiment], part_s: float = PART_S) -> list[list[Experiment]]:
    """The experiments in their order, cut into parts whose limits together are not longer than a part."""
    found: list[list[Experiment]] = [[]]
    for each in experiments:
        if found[-1] and START_S + sum(other.limit_s for other in found[-1]) + each.limit_s > part_s:
            found.append([])
        found[-1].append(each)
    return found


def next_one(waiting: Sequence[Experiment], left_s: float) -> Experiment | None:
    """The first experiment whose whole limit is left; None if none fits."""
    return next((each for each in waiting if each.limit_s <= left_s), None)


def finished(path: Path | None, rehearsed: bool = False) -> dict[str, Row]:
    """The rows of a file of results by name, the last of each; torn lines and those that had no time are left out.

    Rows of a rehearsal finish nothing but another rehearsal.
    """
    if path is None or not path.exists():
        return {}
    rows = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            row = Row(**json.loads(line))
        except (TypeError, ValueError):  # the machine was taken away while it was written
            continue
        if row.reason != NO_TIME and (rehearsed or not row.status.startswith("rehearsed")):
            rows[row.name] = row
    return rows


def answers(experiments: Iterable[Experiment], rows: Mapping[str, Row]) -> Iterator[str]:
    """One line a question: answered, in part, or not, with the experiments and how they ended."""
    by_question: dict[str, list[Experiment]] = {}
    for each in experiments:
        by_question.setdefault(each.question, []).append(each)
    for letter, text in QUESTIONS.items():
        mine = by_question.get(letter, [])
        if not mine:
            continue
        done = [rows[each.name] for each in mine if each.name in rows]
        told = [row for row in done if row.status not in ("failed", "skipped")]
        word = "answered" if len(told) == len(mine) else "in part" if told else "open"
        ended = ", ".join(f"{row.name} {row.status}" for row in done)
        yield f"({letter}) {word:8} {len(told)} of {len(mine)}: {text}" + (f" [{ended}]" if ended else "")
