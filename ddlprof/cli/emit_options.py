"""`ddlprof recommend --emit ENGINE`: the options about the file that starts a plan, and the file."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ddlprof.base.errors import UserError
from ddlprof.cli.output import STDOUT, Wanted, require_destination, say_written, tells_format, wanted, write_pieces

if TYPE_CHECKING:
    from ddlprof.planning.job import DescribedJob
    from ddlprof.recommender import Layout
    from ddlprof.recommender.plans.plan import Plan
    from ddlprof.report.plans.data import Answer


class Emission(NamedTuple):
    """What is asked for: an engine, a plan and a file."""

    engine: str
    number: int
    """The plan's, from 1."""
    path: Path | None
    """The file; None: not told."""


def wanted_with(
    engine: str | None, number: int | None, out: list[str] | None, format: str | None, formats: tuple[str, ...]
) -> tuple[Emission | None, Wanted]:
    """What is to be emitted, if anything, and the formats and places of the page.

    The file of the engine is the one of `-o` whose ending tells none of the page's formats. Raises UserError for an
    unknown engine, for two such files, and where a file cannot be written.
    """
    if engine is None:
        if number is not None:
            raise UserError("--plan K says which plan to write: give --emit ENGINE, too")
        return None, wanted(out, format, formats)
    known = _known()
    if engine not in known:
        raise UserError(f"unknown engine {engine!r} for --emit; known: {', '.join(known)}")
    files = [text for text in out or () if text != STDOUT and not tells_format(text, formats)]
    if format is not None and len(out or ()) == 1:  # --format decides for a single file
        files = []
    if len(files) > 1:
        raise UserError(f"{' and '.join(files)}: one file is enough for --emit {engine}")
    path = Path(files[0]) if files else None
    require_destination(path)
    of_page = [text for text in out or () if text not in files] or None
    return Emission(engine, number or 1, path), wanted(of_page, format, formats)


def _known() -> list[str]:
    from ddlprof.emit.engines import ENGINES
    from ddlprof.emit.frameworks.table import FRAMEWORKS

    return [*ENGINES, *FRAMEWORKS]


def with_path(asked: Emission | None, job: DescribedJob, has_layout: bool) -> Emission | None:
    """The same with a file, whose name is the job's where it is not told. Raises UserError for an engine that needs a
    layout where none is asked for, or if the file was not told and exists: it may have been edited."""
    from ddlprof.emit.engines import ENGINES
    from ddlprof.emit.frameworks.table import FRAMEWORKS
    from ddlprof.emit.start import file_name

    if asked is None:
        return None
    engine = asked.engine
    if engine in FRAMEWORKS and not has_layout:
        raise UserError(f"--emit {engine} writes a layout: give --layouts auto")
    if asked.path is not None:
        return asked
    ending = ENGINES[engine].ending if engine in ENGINES else FRAMEWORKS[engine].ending
    path = Path(f"{file_name(job.name)}.{ending}")
    if os.path.lexists(path):
        raise UserError(f"{path} exists already: move it away to have a new one written")
    return asked._replace(path=path)


def allows(job: DescribedJob, engine: str | None, precision: str | None) -> Callable[[Layout], bool] | None:
    """Tells which layouts an engine has words for; None: all. Raises UserError where it is none of this job."""
    from ddlprof.emit.frameworks.table import FRAMEWORKS
    from ddlprof.emit.frameworks.table import allows as allowed
    from ddlprof.planning.layouts import USUAL_PRECISION, require_sizes

    require_sizes(job.workload)
    return allowed(engine, job.workload, precision or USUAL_PRECISION) if engine in FRAMEWORKS and engine else None


def emit(
    asked: Emission | None, job: DescribedJob, answer: Answer, shown: Sequence[Plan], precision: str | None
) -> None:
    """Writes the file of the plan, if it is asked for: one of those `shown` in the table, by its number there.

    Raises UserError where there is no such plan, or the engine has no word for it.
    """
    from ddlprof.base.text import shell_word

    if asked is None or asked.path is None:
        return
    if asked.number > len(shown):
        more = "; --top K shows more of them" if len(shown) < len(answer.accepted) else ""
        raise UserError(f"--plan {asked.number}: the table has {len(shown)} plans, which are numbered from 1{more}")
    text, how = _made(asked, job, answer, shown[asked.number - 1], precision)
    write_pieces(asked.path, [text])
    say_written(f"{asked.path}; read it, then: {how.format(path=shell_word(str(asked.path), path=True))}")


def _made(asked: Emission, job: DescribedJob, answer: Answer, plan: Plan, precision: str | None) -> tuple[str, str]:
    """The text, and how it is started; `{path}` stands for the file."""
    from ddlprof.emit.engines import ENGINES
    from ddlprof.emit.frameworks.table import FRAMEWORKS, training_of
    from ddlprof.emit.start import start_of
    from ddlprof.planning.layouts import USUAL_PRECISION
    from ddlprof.recommender.target import default_catalog
    from ddlprof.report.plans.data import asked_in_words

    engine = asked.engine
    if engine in ENGINES:
        words = asked_in_words(answer.differences)
        start = start_of(answer.accepted, plan, asked.number, job.name, job.command, words, default_catalog())
        return ENGINES[engine].render(start), ENGINES[engine].how(start)
    training = training_of(plan, job.workload, precision or USUAL_PRECISION)
    return FRAMEWORKS[engine].render(training), FRAMEWORKS[engine].start
