"""`ddlprof recommend --emit ENGINE`: the file that starts the best plan."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ddlprof.base.errors import UserError
from ddlprof.cli.output import say_written, write_whole

if TYPE_CHECKING:
    from ddlprof.planning.job import DescribedJob
    from ddlprof.report.plans.data import Answer
    from recommender import Layout

_SKYPILOT = "skypilot"


def path_for(job: DescribedJob, engine: str, has_layout: bool) -> Path:
    """The path of the file for an engine.

    Raises UserError for an unknown engine, for one that needs a layout where none is asked for, or if the file exists:
    it may have been edited.
    """
    from ddlprof.report.launch.engines import ENGINES
    from ddlprof.report.plans.skypilot import task_name

    if engine != _SKYPILOT and engine not in ENGINES:
        raise UserError(f"unknown engine {engine!r} for --emit; known: {', '.join([_SKYPILOT, *ENGINES])}")
    if engine in ENGINES and not has_layout:
        raise UserError(f"--emit {engine} writes a layout: give --layouts auto")
    ending = "sky.yaml" if engine == _SKYPILOT else ENGINES[engine].ending
    path = Path(f"{task_name(job.name)}.{ending}")
    if path.exists():
        raise UserError(f"{path} exists already: move it away to have a new one written")
    return path


def allows(job: DescribedJob, engine: str | None, precision: str | None) -> Callable[[Layout], bool] | None:
    """Tells which layouts an engine can be launched with; None: all. Raises UserError where it is none of this job."""
    from ddlprof.planning.layouts import USUAL_PRECISION, require_sizes
    from ddlprof.report.launch.engines import ENGINES
    from ddlprof.report.launch.engines import allows as allowed

    require_sizes(job.workload)
    return allowed(engine, job.workload, precision or USUAL_PRECISION) if engine in ENGINES and engine else None


def emit(path: Path, engine: str, job: DescribedJob, answer: Answer, precision: str | None) -> None:
    """Writes the file of the best plan. Raises UserError where the engine has no word for it."""
    from ddlprof.planning.layouts import USUAL_PRECISION
    from ddlprof.report.launch.engines import ENGINES, launch_of
    from ddlprof.report.plans import skypilot
    from ddlprof.report.plans.data import asked_in_words

    best = answer.accepted[0]
    if engine == _SKYPILOT:
        write_whole(path, skypilot.render(best, job.name, job.command, asked_in_words(answer.differences)))
        say_written(f"{path}; read it, then: sky launch {path}")
        return
    found = ENGINES[engine]
    write_whole(path, found.render(launch_of(best, job.workload, precision or USUAL_PRECISION)))
    say_written(f"{path}; read it, then: {found.start.format(path=path)}")
