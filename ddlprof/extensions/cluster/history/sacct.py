"""Reads what Slurm remembers: `sacct -P -D -a -o JobID,JobName,User,Submit,Start,End,State,AllocTRES,NNodes`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ddlprof.base.errors import UserError, naming
from ddlprof.extensions.cluster.history.files import Wrong, lines, require_few, text_in
from ddlprof.extensions.cluster.history.past import PastJob
from ddlprof.extensions.cluster.history.times import moment, seconds

STEPS = "steps of jobs"
_NEEDED = ("JobID", "Submit", "Start", "End", "State")
_JOB = re.compile(r"(\d+)(_\d+|_\[[^\]]*\])?(?:\+(\d{1,9}))?(\..+)?", re.ASCII)
"""`12`, a task of an array `12_4`, tasks that wait `12_[5-9]`, a part of a heterogeneous job `12+1`, a step `12.0`."""
_TRES = re.compile(r"gres/gpu(?::([^=,]+))?=(\d+(?:\.\d*)?)([KMGTP]?)", re.IGNORECASE)
_GRES = re.compile(r"gpu(?::([^:,(]+))?:(\d+)")
_NODES = re.compile(r"\d{1,9}", re.ASCII)
_UNIT = {"": 1, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_SAME_S = 120.0
"""A job that is put back into the queue is submitted again as it ends. Beyond so many seconds, it is another job under
an old number."""


@dataclass(frozen=True)
class _Record:
    """A line: one start of one part of a job."""

    key: str
    part: int
    job: PastJob


def read(paths: Sequence[Path]) -> tuple[list[PastJob], dict[str, int]]:
    """The jobs of all files, and how many lines were left out, by what they are. Raises UserError with file and line.

    A job that several files have, as those of two months do, counts once.
    """
    records: dict[tuple[str, int], dict[PastJob, None]] = {}
    steps = 0
    for path in paths:
        for line, row in _rows(path, text_in(path)):
            with naming(f"{path}, line {line}"):
                record = _record(row)
            if record is None:
                steps += 1
            else:
                records.setdefault((record.key, record.part), {})[record.job] = None
    parts: dict[tuple[str, int], list[PastJob]] = {}
    for (key, _), starts in records.items():
        for number, job in enumerate(_without_requeues(list(starts))):
            parts.setdefault((key, number), []).append(job)
    return [_one_job(each) for each in parts.values()], {STEPS: steps}


def _rows(path: Path, text: str) -> Iterator[tuple[int, dict[str, str]]]:
    """The lines by column. Names of jobs may have bars, which sacct leaves as they are."""
    numbered = enumerate((line.rstrip("\n") for line in lines(text)), 1)
    first, header = next(((number, line) for number, line in numbered if line.strip()), (1, ""))
    columns = [name.strip() for name in header.rstrip("|").split("|")]
    known = {name.lower(): number for number, name in enumerate(columns)}
    missing = [name for name in _NEEDED if name.lower() not in known]
    if missing or not {"alloctres", "reqtres", "allocgres"} & known.keys():
        raise UserError(
            f"{path}, line {first}: no column {(*missing, 'AllocTRES')[0]}; expected is what"
            " sacct -P -D -a -o JobID,JobName,User,Submit,Start,End,State,AllocTRES,NNodes prints"
        )
    name_at = known.get("jobname")
    for number, line in numbered:
        if not line.strip():
            continue
        with naming(f"{path}, line {number}"):
            require_few(number - first)
        cells = line.split("|")
        if len(cells) == len(columns) + 1 and not cells[-1]:  # sacct -p ends lines with a bar
            cells.pop()
        beyond = len(cells) - len(columns)
        if beyond > 0 and name_at is not None:
            cells[name_at : name_at + beyond + 1] = ["|".join(cells[name_at : name_at + beyond + 1])]
        if len(cells) != len(columns):
            raise UserError(f"{path}, line {number}: {len(cells)} cells under {len(columns)} columns")
        yield number, {name: cells[at].strip() for name, at in known.items()}


def _record(row: dict[str, str]) -> _Record | None:
    """None: a step, which runs on GPUs of its job."""
    parts = _JOB.fullmatch(row["jobid"])
    if parts is None:
        raise Wrong(f"JobID: {row['jobid'][:60]!r} is no number of a job such as 12, 12_4, 12+1 or 12.batch")
    if parts[4]:
        return None
    submit_s = moment(row["submit"], "Submit")
    if submit_s is None:
        raise Wrong(f"Submit: {row['submit']!r} is no date")
    start_s, end_s = moment(row["start"], "Start"), moment(row["end"], "End")
    gpus, gpu_model = _gpus(row)
    state = row["state"].split()[0] if row["state"] else ""  # CANCELLED by 1000
    if start_s is not None and end_s is None and state not in ("RUNNING", "SUSPENDED", "PENDING", "COMPLETING"):
        elapsed_s = seconds(row.get("elapsed", ""), "Elapsed")
        end_s = None if elapsed_s is None else start_s + elapsed_s
    key = parts[1] + (parts[2] or "")
    job = PastJob(
        job_id=key,
        submit_s=submit_s,
        gpus=gpus,
        start_s=start_s,
        end_s=end_s,
        nodes=_nodes(row.get("nnodes", "")),
        state=state,
        user=row.get("user", ""),
        name=row.get("jobname", ""),
        queue=row.get("partition", ""),
        gpu_model=gpu_model,
    )
    return _Record(key, int(parts[3] or 0), job)


def _gpus(row: dict[str, str]) -> tuple[float, str]:
    """GPUs and their model of `billing=16,cpu=16,gres/gpu:a100=8,gres/gpu=8,mem=64G,node=2`, or `gpu:a100:8`."""
    tres = row.get("alloctres") or row.get("reqtres", "")
    found = [(model, float(number) * _UNIT[unit.upper()]) for model, number, unit in _TRES.findall(tres)]
    if not found:
        nodes = _nodes(row.get("nnodes", "")) or 1
        found = [(model, float(number) * nodes) for model, number in _GRES.findall(row.get("allocgres", ""))]
    typed = [(model, number) for model, number in found if model]
    untyped = sum(number for model, number in found if not model)
    return max(untyped, sum(number for _, number in typed)), typed[0][0] if len(typed) == 1 else ""


def _nodes(text: str) -> int | None:
    if not text:
        return None
    if not _NODES.fullmatch(text):
        raise Wrong(f"NNodes: {text[:60]!r} is no number")
    return int(text) or None


def _without_requeues(records: Sequence[PastJob]) -> Iterator[PastJob]:
    """Joins the starts of one job; jobs that only share a number, since Slurm counted from 1 again, stay apart."""
    going: PastJob | None = None
    for job in sorted(records, key=lambda each: (each.submit_s, each.start_s or each.submit_s)):
        if going is None:
            going = job
        elif going.end_s is not None and job.submit_s - going.end_s <= _SAME_S:
            going = _joined(going, job)
        else:
            yield going
            going = job
    if going is not None:
        yield going


def _joined(before: PastJob, after: PastJob) -> PastJob:
    """A job that began as `before` and went on as `after`."""
    if before.start_s is None or not before.duration_s:
        return replace(after, submit_s=before.submit_s)
    if after.start_s is None and after.end_s is not None:  # cancelled while it waited again
        return replace(before, state=after.state)
    ended = after.end_s is not None
    return replace(
        after,
        submit_s=before.submit_s,
        start_s=before.start_s,
        gpus=max(before.gpus, after.gpus),
        held_s=before.duration_s + (after.duration_s or 0.0) if ended else None,
        starts=before.starts + 1,
    )


def _one_job(parts: Sequence[PastJob]) -> PastJob:
    """The parts of a heterogeneous job as one."""
    if len(parts) == 1:
        return parts[0]
    starts = [part.start_s for part in parts if part.start_s is not None]
    ends = [part.end_s for part in parts if part.end_s is not None]
    holders = [part for part in parts if part.gpus] or parts
    lengths = [part.duration_s for part in holders]
    known = [length for length in lengths if length is not None]
    return replace(
        parts[0],
        submit_s=min(part.submit_s for part in parts),
        start_s=min(starts) if len(starts) == len(parts) else None,
        end_s=max(ends) if len(ends) == len(parts) else None,
        held_s=max(known) if len(known) == len(lengths) else None,
        gpus=sum(part.gpus for part in parts),
        nodes=holders[0].nodes if len(holders) == 1 else None,  # parts may share machines
        gpu_model=holders[0].gpu_model if len({part.gpu_model for part in holders}) == 1 else "",
    )
