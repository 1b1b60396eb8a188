"""What `ddlprof report` does once it is known what is asked for."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ddlprof.base.errors import UserError, complain

if TYPE_CHECKING:
    from ddlprof.report.run.formats import Analysed

_THREADS = "OPENBLAS_NUM_THREADS"


@contextmanager
def quick_imports() -> Iterator[None]:
    """What a report needs is to be imported in the block, which makes it a quarter faster.

    numpy comes without the threads of its linear algebra, one a core, which nothing in a report uses, and Python looks
    for no circles among classes and functions that are there to stay, not even later on.
    """
    collects, has_numpy = gc.isenabled(), "numpy" in sys.modules or _THREADS in os.environ
    gc.disable()
    try:
        if not has_numpy:
            os.environ[_THREADS] = "1"
            import numpy  # noqa: F401
        yield
    finally:
        if not has_numpy:
            del os.environ[_THREADS]
        gc.freeze()
        if collects:
            gc.enable()


def show_card(run: str) -> int:
    """`ddlprof report --save-summary -- RUN`, as at the end of every run; returns the exit code."""
    with quick_imports():
        from ddlprof.cli.screen import show
        from ddlprof.report.run.formats import FORMATS
        from ddlprof.report.run.summary import summarise_run  # noqa: F401

    analysed = analysed_run([run])
    save_summary_of([run], analysed)
    show("".join(FORMATS["table"](analysed)))
    return 0


def analysed_run(
    runs: list[str], instance: str | None = None, steps: tuple[int | None, int | None] = (None, None)
) -> Analysed:
    """Reads and analyses the run, and says how far it is where that takes long."""
    import time

    from ddlprof.analysis.run import analyse
    from ddlprof.cli.progress import progress
    from ddlprof.report.run.formats import Analysed
    from ddlprof.store import load_run

    with progress("reading") as advance:
        data = load_run(runs, advance)
        return Analysed(data, analyse(data), time.time_ns(), instance, steps)


def save_summary_of(runs: list[str], analysed: Analysed) -> None:
    """Writes the summary into the run directory. Where that fails, a line says so, and the report is shown."""
    from ddlprof.report.run.summary import summarise_run

    if len(runs) > 1 or "://" in runs[0]:
        raise UserError("--save-summary takes one run directory of this machine")
    try:
        summarise_run(analysed.run, analysed.attempts, analysed.report).write(Path(runs[0]))
    except OSError as error:
        complain(f"{runs[0]}: summary.json cannot be written: {error.strerror or error}")
