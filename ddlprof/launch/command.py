"""`ddlprof run -- COMMAND`: runs any launcher as a process of its own; the processes that train under it are profiled.

They find the run by their environment (`ddlprof.model.options`). The terminal's signals reach the command as they would
without ddlprof, its exit code is returned, and the card is printed when it has ended.

Every `ddlprof run` imports this file to see whether it is of this form, so what only this form needs is imported in
functions.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType

from ddlprof.base.errors import complain, refusing
from ddlprof.model.naming import default_directory, require_unused
from ddlprof.model.options import Options, ParentRun

_SCRIPT_SUFFIXES = (".py", ".pyc", ".pyz", ".pyw")
_PASSED_ON = ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
"""Signals that a scheduler sends to one process. Signals of a terminal reach the whole group anyway."""
_SIGNALLED = 128
"""Shells add the number of the signal to this for the exit code of a process that ended by a signal."""
_FORMS = {
    "mpirun": "let it pass PYTHONPATH and DDLPROF_JOB on (-x with Open MPI), or type: mpirun ... ddlprof run SCRIPT",
    "srun": "let it pass the environment on (--export=ALL), or type: srun ... ddlprof run SCRIPT",
    "deepspeed": "on other machines, put PYTHONPATH and DDLPROF_JOB into .deepspeed_env",
}
_OTHER_FORM = "write ddlprof where it starts Python instead, as in: torchrun ... -m ddlprof run SCRIPT"


def is_command(words: list[str]) -> bool:
    """Whether the words begin with an executable, not a Python script."""
    path = Path(words[0])
    if path.suffix in _SCRIPT_SUFFIXES or (path / "__main__.py").exists():
        return False
    if path.is_file() and (os.sep not in words[0] or _is_python_script(path)):
        return False
    import shutil

    return shutil.which(words[0]) is not None


def _is_python_script(path: Path) -> bool:
    """Whether a file is a Python script. In doubt it is, as ddlprof is usually given scripts."""
    with path.open("rb") as file:
        first = file.readline(200)
    return b"python" in first if first.startswith(b"#!") else b"\0" not in first


def run_command(words: list[str], options: Options | None) -> int:
    """Runs the command to its end; returns its exit code. Raises UserError if the run directory cannot be used."""
    if options is None:
        return run_words(words, {})
    import uuid

    from ddlprof.launch.afterwards import EndTask, afterwards
    from ddlprof.launch.terminal import CARD_S, VIEW_S, start_view

    if options.out is None:
        directory = default_directory(_name(words)).absolute()
    else:
        directory = Path(options.out).absolute()
        require_unused(directory)
    job_id, quiet, here = uuid.uuid4().hex, options.quiet, os.getcwd()
    view = start_view(directory, os.getpid()) if options.live else None
    options = replace(options, card=False, live=False)
    variables = ParentRun(options, None, job_id, str(directory)).environment()
    steps = [EndTask("no card", CARD_S, lambda: _show(directory, here, words, quiet), lambda: directory)]
    if view is not None:
        steps.insert(0, EndTask("the live view is not ended", VIEW_S, view.end))
    code = run_words(words, variables)
    afterwards(code, steps, quiet)
    return code


def _show(directory: Path, working_directory: str, words: list[str], quiet: bool) -> None:
    """Shows what was measured, or says that nothing was."""
    from ddlprof.launch.terminal import await_ranks, print_card, save_summary

    if any(directory.glob("attempt-*")):
        await_ranks(directory)
        if quiet:
            save_summary(directory)
        else:
            print_card(directory, working_directory)
        return
    with suppress(OSError):
        directory.rmdir()
    if not quiet:
        complain(_nothing_seen(words))


def _name(words: list[str]) -> str:
    """The name of the script among the words, else the name of the command."""
    scripts = [word for word in words[1:] if word.endswith(".py")]
    return Path(scripts[0] if scripts else words[0]).stem


def _nothing_seen(words: list[str]) -> str:
    launcher = "mpirun" if Path(words[0]).name in ("mpiexec", "orterun") else Path(words[0]).name
    return (
        f"nothing that {launcher} started here was seen to train: no torch.optim optimizer made a step, or the "
        f"environment of this command did not get there; {_FORMS.get(launcher, _OTHER_FORM)}"
    )


def run_words(words: list[str], variables: dict[str, str]) -> int:
    """Runs a command with additional environment variables; returns its exit code as a shell would."""
    import signal
    import subprocess

    with refusing(f"cannot run {words[0]}"):
        process = subprocess.Popen(words, env={**os.environ, **variables})

    def pass_on(number: int, _: FrameType | None) -> None:
        if number != signal.SIGINT:  # a terminal sends it to the command as well, which decides
            with suppress(OSError):  # another user's command
                process.send_signal(number)

    for name in ("SIGINT", *_PASSED_ON):
        if hasattr(signal, name) and signal.getsignal(getattr(signal, name)) != signal.SIG_IGN:  # as under nohup
            signal.signal(getattr(signal, name), pass_on)
    code = process.wait()
    return code if code >= 0 else _SIGNALLED - code
