"""From a folder of runs to corrections of the predictor.

from ddlprof.planning.learning import learn_from
learn_from("ddlprof-runs").lesson.learned
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from ddlprof.base.errors import DdlprofError, UserError

if TYPE_CHECKING:
    from ddlprof.extensions.learn.report import Learning
    from ddlprof.planning.job import DescribedJob
    from ddlprof.recommender import Workload


Watch = Callable[[str], AbstractContextManager[Callable[[int, int], None]]]
"""`with watch("reading runs") as advance: advance(done, total)`."""


def learn_from(folder: str | Path, watch: Watch = lambda what: nullcontext(lambda done, total: None)) -> Learning:
    """Learns from all runs under a folder or in a bucket. Raises UserError where there is no run."""
    from ddlprof.extensions.learn.judge import learn
    from ddlprof.extensions.learn.report import Learning
    from ddlprof.planning.job import identity, joined
    from ddlprof.store.fleet import search

    found = search(folder)
    if not found.runs:
        raise UserError("; ".join([f"{folder}: no run in it", *found.left_out, "make one with: ddlprof run SCRIPT"]))
    jobs: dict[object, list[tuple[str, Workload]]] = {}
    unused: list[tuple[str, str]] = []
    with watch("reading runs") as advance:
        for number, run in enumerate(found.runs, 1):
            try:
                job = _usable(run.path)
                key = identity(job)
                seen = [workload.measurements for _, workload in jobs.get(key, [])]
                if job.workload.measurements in seen:
                    raise UserError("a copy of another run")
                jobs.setdefault(key, []).append((run.path, job.workload))
            except DdlprofError as error:
                unused.append((run.path, str(error).removeprefix(f"{run.path}: ")))
            advance(number, len(found.runs))
    merged = [(joined([each for _, each in runs]), tuple(path for path, _ in runs)) for runs in jobs.values()]
    with watch("fitting") as advance:
        lesson = learn([workload for workload, _ in merged], progress=advance)
    unused += [(path, reason) for index, reason in lesson.unused for path in merged[index][1]]
    used = sum(len(paths) for index, (_, paths) in enumerate(merged) if index not in dict(lesson.unused))
    return Learning(str(folder), lesson, used, tuple(sorted(unused)), tuple(found.left_out))


def _usable(path: str) -> DescribedJob:
    """The job of a run on GPUs. Raises UserError for one that tells nothing of them."""
    from ddlprof.planning.job import load_job

    job = load_job([path])
    if all(m.instance_type is None and m.gpu_model is None for m in job.workload.measurements):
        raise UserError("ran on a CPU")
    return job
