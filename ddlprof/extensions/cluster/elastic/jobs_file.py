"""Reads the file of `ddlprof elastic`: one job a line as CSV, or a list of objects as JSON. Only `name` and `run` are
required."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from ddlprof.base.errors import UserError, naming
from ddlprof.base.reading import POSITIVE, Interval, Length, decode, parse_json, read_text, settle
from ddlprof.extensions.cluster.machines import MAX_GPUS
from ddlprof.instance_catalog import table
from ddlprof.recommender import Measurement, Workload
from ddlprof.recommender.workload import MAX_BATCH

MAX_FILE_BYTES = 4 * 2**20
_STEP = re.compile(r"(\d{1,7})x(\d{1,10})=([0-9.eE+-]{1,30})")
Gpus = Annotated[int, Interval(1, MAX_GPUS)]
Batch = Annotated[int, Interval(1, MAX_BATCH)]


@dataclass(frozen=True)
class Line:
    """One job of the file. Cells may be empty if there is a default."""

    name: Annotated[str, Length(1, 200)]
    run: Annotated[str, Length(0, 20_000)] = ""
    """Run directories or files of workloads, with semicolons between them, beside the file or by their whole paths; or
    steps that somebody measured, as `GPUSxBATCH=SECONDS`."""
    gpus: Gpus | None = None
    """The number of GPUs under a policy that does not choose it, such as `fifo` [min_gpus]."""
    min_gpus: Gpus = 1
    max_gpus: Gpus | None = None
    batch: Batch | None = None
    """The batch over all GPUs under a policy that does not choose it [as measured]."""
    min_batch: Batch | None = None
    max_batch: Batch | None = None
    max_batch_per_gpu: Batch | None = None
    samples: Annotated[float, POSITIVE] | None = None
    """The number of samples that it still trains with."""
    submit_s: Annotated[float, Interval(0, 4e9)] = 0.0
    noise_scale: Annotated[float, POSITIVE] | None = None
    """The noise scale of its gradients, in samples."""
    layout: Annotated[str, Length(0, 200)] = ""
    """How its model is divided over GPUs, such as tp8,pp2,zero1,mb1; tensor and pipeline stay, data ranks scale."""

    def __post_init__(self) -> None:
        settle(self)

    @property
    def sources(self) -> list[str]:
        """The parts of `run`."""
        return [part.strip() for part in self.run.split(";") if part.strip()]


@dataclass(frozen=True)
class _File:
    jobs: Annotated[tuple[Line, ...], Length(1, 100_000)] = field(default=())


def read_jobs(path: Path) -> list[Line]:
    """The jobs of a file. Raises `DdlprofError` in one line that names the file, and the line or field."""
    with naming(path):
        text = read_text(path, MAX_FILE_BYTES)
        lines = (
            list(decode(_File, {"jobs": parse_json(text)}).jobs)
            if text.lstrip()[:1] in ("[", "{")
            else table.parse(text, path, Line, None, "see docs/elastic.md for its columns")
        )
    if not lines:
        raise UserError(f"{path}: has no jobs")
    seen: set[str] = set()
    for line in lines:
        if problem := _problem(line, seen):
            raise UserError(f"{path}: {problem}")
        seen.add(line.name)
    return lines


def _problem(line: Line, before: set[str]) -> str | None:
    if line.name in before:
        return f"two jobs are called {line.name}"
    if not line.sources:
        return f"{line.name}: give a run directory, a workload file or steps such as 1x32=0.12 in run"
    for low, high in (("min_gpus", "max_gpus"), ("min_batch", "max_batch")):
        least, most = getattr(line, low), getattr(line, high)
        if least is not None and most is not None and least > most:
            return f"{line.name}: {low} {least} is above {high} {most}"
    return None


def measured_steps(line: Line) -> Workload | None:
    """The workload of a job whose `run` is a list of measured steps; None where it names files.

    Raises `UserError` for a step that no GPUs could have made.
    """
    found = [_STEP.fullmatch(source) for source in line.sources]
    if not all(found):
        return None
    measurements = []
    for match in found:
        gpus, batch, step = int(match[1]), int(match[2]), match[3]  # type: ignore[index]
        if not 0 < gpus <= batch or batch % gpus:
            raise UserError(f"{line.name}: {match[0]}: {batch} samples do not divide evenly by {gpus} GPUs")  # type: ignore[index]
        try:
            measurements.append(Measurement(placement=(gpus,), batch_per_gpu=batch // gpus, step_s=float(step)))
        except ValueError as error:
            raise UserError(f"{line.name}: {match[0]}: {error}") from None  # type: ignore[index]
    return Workload(line.name, measurements=measurements)
