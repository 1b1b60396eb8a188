"""Runs `ddlprof run SCRIPT` and shows the card at the end of a run without the parser, whose import takes long."""

from __future__ import annotations

import gc
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ddlprof.base.errors import UserError, complain
from ddlprof.model.naming import on_this_machine
from ddlprof.model.options import DISABLE_VARIABLE, Options

if TYPE_CHECKING:
    from ddlprof.launch.target import LaunchTarget
    from ddlprof.launch.torchrun import LauncherOptions
    from ddlprof.report.run.formats import Analysed

CARD_BYTES = 1 << 30
CARD_READING_S = 20.0
"""A run of more bytes, or whose ranks take longer to read, has no card at its end."""
OWN_OPTIONS = {
    "--out", "--quiet", "--stop-after", "--step-optimizer", "--data-call", "--no-calibrate", "--profiler-windows",
    "--time-collectives", "--hang-after", "--live", "--nproc-per-node", "--nnodes", "--node-rank", "--master-addr",
    "--master-port",
}  # fmt: skip
"""The options of `ddlprof run`, which stand before the script. A test holds them to the command's own."""
_THREADS = "OPENBLAS_NUM_THREADS"
"""The variable that says how many threads numpy's linear algebra starts."""


def run_plainly(words: list[str]) -> int | None:
    """Runs the words after `ddlprof run` if they can be understood without the parser; returns the exit code.

    Returns None where the parser is needed, for rarer options or mistakes. A test compares both ways.
    """
    options, module, words = Options(), False, list(words)
    while words and words[0].startswith("-"):
        option = words.pop(0)
        if option == "--":
            break
        if option == "--quiet":
            options.quiet = True
        elif option in ("-m", "--module"):
            module = True
        elif option in ("-o", "--out") and words and not words[0].startswith("-"):
            options.out = on_this_machine(words.pop(0))
        else:
            return None
    if not words or not words[0]:
        return None
    from ddlprof.launch.target import LaunchTarget
    from ddlprof.launch.torchrun import LauncherOptions

    return run_target(LaunchTarget(words, module), LauncherOptions(), options)


def run_target(target: LaunchTarget, job: LauncherOptions, options: Options) -> int:
    """Runs the target; returns the exit code where this process does not become it.

    `job`: the processes to launch. `options` are ignored where the user has switched ddlprof off.
    """
    from ddlprof.base.torch_needed import require_torch
    from ddlprof.launch import command, torchrun
    from ddlprof.launch.target import become, python_command

    asked = None if os.environ.get(DISABLE_VARIABLE, "0") not in ("", "0") else options
    torchrun_words = torchrun.torchrun_words(target)
    if torchrun_words is not None:
        _say_once(job, "torchrun")
        require_torch()
        return torchrun.launch_torchrun(torchrun_words, asked)
    python = None if target.module else python_command(target.words)
    if python is None and not target.module:
        _say_misplaced(target.words)
    if python is None and not target.module and command.is_command(target.words):
        _say_once(job, target.words[0])
        return command.run_command(target.words, asked)
    if asked or job.asked_for():  # a command of its own, above, may start a Python that has torch
        require_torch()
    if job.asked_for():
        return torchrun.launch_target(job, python.target if python else target, asked)
    if python is not None:
        return become(python.target, asked, python.options)
    return become(target, asked)


def _say_misplaced(words: list[str]) -> None:
    """Says on stderr that an option of ours stands behind the script, unless the script may know it.

    A script that reads its arguments in some way of its own is not told from one that does not; it is run all the same.
    """
    script, *rest = words
    own = [option for word in rest if (option := word.partition("=")[0]) in OWN_OPTIONS]
    if not own or not script.endswith(".py"):
        return
    try:
        text = Path(script).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return  # what reads it next says why
    for option in own:
        name = option[2:].replace("-", "_")
        if option not in text and not re.search(rf"\b{name}\s*:", text):
            complain(f"{option} goes to {script}: options of ddlprof run stand before the script")


def _say_once(job: LauncherOptions, launcher: str) -> None:
    if job.asked_for():
        raise UserError(f"say how many processes once: to {launcher}, or to ddlprof run without {launcher}")


@contextmanager
def _quick_imports() -> Iterator[None]:
    """Makes the imports of a report inside the block a quarter faster.

    numpy starts without the threads of its linear algebra, one a core, which no report uses, and the garbage collector
    does not look for cycles among classes and functions that stay until the end, not even later on.
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
    """What the end of every run does: `ddlprof report RUN --save-summary`; returns the exit code.

    Raises UserError if that would take long: the machine may be expensive, and the run can be read anywhere.
    """
    from ddlprof.cli.screen import progress, show
    from ddlprof.report.run.formats import FORMATS

    size = sum(file.stat().st_size for file in Path(run).glob("attempt-*/rank-*"))
    if size > CARD_BYTES:
        raise _no_card(run, f"the files of the ranks have {size / 1e9:.1f} GB")
    with progress("reading") as advance:
        analysed = analysed_run([run], _in_time(run, advance))
    save_summary_of([run], analysed)
    show("".join(FORMATS["table"](analysed)))
    return 0


def _in_time(run: str, advance: Callable[[int, int], None]) -> Callable[[int, int], None]:
    """Advances until the time for reading is up."""
    until = time.monotonic() + CARD_READING_S

    def advance_in_time(done: int, total: int) -> None:
        if done < total and time.monotonic() > until:
            raise _no_card(run, f"the files of the ranks are not read in {CARD_READING_S:.0f} s")
        advance(done, total)

    return advance_in_time


def _no_card(run: str, why: str) -> UserError:
    from ddlprof.base.text import shell_word

    return UserError(f"no card: {why}; show it with: ddlprof report {shell_word(run, path=True)}")


def analysed_run(
    runs: list[str],
    advance: Callable[[int, int], None],
    instance: str | None = None,
    steps: tuple[int | None, int | None] = (None, None),
    carbon_g_per_kwh: float | None = None,
    phase: int | None = None,
) -> Analysed:
    """Reads and analyses the run; `advance(done, total)` is told how far the reading is."""
    with _quick_imports():
        from ddlprof.analysis.run import analyse
        from ddlprof.report.run.data import build_report  # noqa: F401  (which whatever shows it needs)
        from ddlprof.report.run.formats import Analysed
        from ddlprof.store import load_run

    data = load_run(runs, advance)
    attempts = analyse(data, phase)
    if phase is not None:
        from ddlprof.analysis.run import headline_attempt
        from ddlprof.report.run.phases import require_phase

        require_phase(headline_attempt(attempts), phase)
    return Analysed(data, attempts, time.time_ns(), instance, steps, carbon_g_per_kwh)


def save_summary_of(runs: list[str], analysed: Analysed) -> None:
    """Writes the summary into the run directory. Where that fails, a line says so, and the report is shown."""
    from ddlprof.report.run.summary import summarise_run

    if len(runs) > 1 or "://" in runs[0]:
        raise UserError("--save-summary takes one run directory of this machine")
    try:
        summarise_run(analysed.run, analysed.attempts, analysed.report).write(Path(runs[0]))
    except OSError as error:
        complain(f"{runs[0]}: summary.json cannot be written: {error.strerror or error}")
