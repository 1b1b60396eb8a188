"""Runs torch's own elastic launcher in this process, with profiled workers.

Used for `ddlprof run --nproc-per-node N SCRIPT` and `ddlprof run -- torchrun ... SCRIPT`. Both are parsed by torch's
argument parser; then the script is replaced by ddlprof's bootstrap, which runs the user's script.

Every `ddlprof run` imports this file to see whether it is of these forms, so what only these forms need is imported in
functions.
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from ddlprof.base.errors import UserError
from ddlprof.launch.target import LaunchTarget, from_command
from ddlprof.model.naming import default_directory, require_unused
from ddlprof.model.options import Options

if TYPE_CHECKING:
    from argparse import Namespace

    from ddlprof.launch.afterwards import EndTask

_LAUNCHER_MODULE = "torch.distributed.run"
_SHOW_S = 10.0


@dataclass(frozen=True)
class LauncherOptions:
    """The launcher options of `ddlprof run`; None: not given."""

    nproc_per_node: str | None = None
    nnodes: int | None = None
    node_rank: int | None = None
    master_addr: str | None = None
    master_port: int | None = None

    def asked_for(self) -> bool:
        """Whether any option is given, so that a launcher is wanted."""
        return self != LauncherOptions()

    def torchrun_words(self) -> list[str]:
        """The same options for torchrun. One machine without an address gets a rendezvous automatically."""
        words = [f"--{name.replace('_', '-')}={value}" for name, value in vars(self).items() if value is not None]
        standalone = (self.nnodes or 1) == 1 and self.master_addr is None and self.master_port is None
        return ["--standalone", *words] if standalone else words


def torchrun_words(target: LaunchTarget) -> list[str] | None:
    """The arguments of torchrun if the target is torchrun in any form; None otherwise."""
    first, *rest = target.words
    if target.module:
        return rest if first == _LAUNCHER_MODULE else None
    if re.fullmatch(r"torchrun(\.exe)?", os.path.basename(first)):
        return rest
    if re.fullmatch(r"python[\d.]*(\.exe)?", os.path.basename(first)):
        python = from_command(rest)
        if python is not None and python.target.module:
            return torchrun_words(python.target)
    return None


def launch_target(job: LauncherOptions, target: LaunchTarget, options: Options | None) -> int:
    """Runs `ddlprof run --nproc-per-node N SCRIPT`; returns the exit code of the launcher."""
    launcher = _launcher()
    arguments = _parse(launcher, [*job.torchrun_words(), target.words[0]])
    arguments.module = target.module
    arguments.training_script_args = target.words[1:]  # unchanged: argparse would drop a `--`
    return _launch(launcher, arguments, options)


def launch_torchrun(words: list[str], options: Options | None) -> int:
    """Runs `ddlprof run -- torchrun ... SCRIPT`; returns the exit code of the launcher."""
    launcher = _launcher()
    return _launch(launcher, _parse(launcher, words), options)


def _launcher() -> ModuleType:
    try:
        import torch.distributed.run
    except ImportError as error:
        raise UserError(
            f"cannot start several processes: {error}; install ddlprof into the environment of the training"
        ) from None
    return torch.distributed.run


def _parse(launcher: ModuleType, words: list[str]) -> Namespace:
    parser = launcher.get_args_parser()
    parser.prog = "torchrun"
    arguments: Namespace = parser.parse_args(words)
    return arguments


def _launch(launcher: ModuleType, arguments: Namespace, options: Options | None) -> int:
    if arguments.no_python or arguments.run_path:
        raise UserError("ddlprof profiles Python scripts: leave out --no-python and --run-path and give the script")
    target = LaunchTarget([arguments.training_script, *arguments.training_script_args], module=arguments.module)
    target.check()
    try:
        ranks = launcher.determine_local_world_size(arguments.nproc_per_node)
        min_nodes, max_nodes = launcher.parse_min_max_nnodes(arguments.nnodes)
    except (RuntimeError, ValueError) as error:
        raise UserError(f"cannot start the job: {error}") from None
    if ranks < 1:
        raise UserError(f"--nproc-per-node {arguments.nproc_per_node}: give at least 1")
    if not 1 <= min_nodes <= max_nodes:
        raise UserError(f"--nnodes {arguments.nnodes}: give at least 1, as N or MIN:MAX")
    arguments.nproc_per_node = str(ranks)
    from ddlprof.launch.afterwards import EndTask, afterwards

    failures: list[Exception] = []
    steps = [] if options is None else _prepare(options, target, arguments, max_nodes == 1, failures)
    steps.insert(0, EndTask("the failed ranks are not shown", _SHOW_S, partial(_show, failures)))
    code = _run(launcher, arguments, failures)
    afterwards(code, steps, options is None or options.quiet)
    return code


def _prepare(
    options: Options, target: LaunchTarget, arguments: Namespace, is_whole_job: bool, failures: list[Exception]
) -> list[EndTask]:
    """Lets the launcher start profiled workers. Returns what is to do at the end of the job, which `failures` ended.

    In a job of several machines rank 0 chooses the directory and shows the card, as no launcher sees the whole job.
    """
    import uuid

    from ddlprof.launch.afterwards import EndTask
    from ddlprof.launch.terminal import CARD_S, VIEW_S, print_card, save_summary, start_view

    steps: list[EndTask] = []
    if is_whole_job:
        directory, live, here = Path(_run_directory(options, target)), options.live, os.getcwd()
        options = replace(options, out=str(directory), card=False, live=False, job_id=uuid.uuid4().hex)
        view = start_view(directory.absolute(), os.getpid()) if live else None
        if view is not None:
            steps.append(EndTask("the live view is not ended", VIEW_S, view.end))
        steps.append(EndTask("a killed rank is not named", _SHOW_S, partial(_note_killed, directory, failures)))
        show = partial(save_summary, directory) if options.quiet else partial(print_card, directory, here)
        steps.append(EndTask("no card", CARD_S, show, lambda: directory))
    options.to_environment()
    arguments.module = False
    arguments.training_script, *arguments.training_script_args = target.profiled_words()
    return steps


def _run_directory(options: Options, target: LaunchTarget) -> str:
    if options.out is None:
        return str(default_directory(target.name))
    require_unused(Path(options.out))
    return options.out


def _run(launcher: ModuleType, arguments: Namespace, failures: list[Exception]) -> int:
    """Runs torch's launcher; returns its exit code. What ended it is added to `failures`."""
    from torch.distributed.elastic.multiprocessing.errors import record

    try:
        record(launcher.run)(arguments)
    except Exception as error:
        failures.append(error)
    return len(failures)


def _note_killed(directory: Path, failures: list[Exception]) -> None:
    """Leaves a word in the run if the first rank that failed was killed, since it could not say so itself."""
    import signal

    from ddlprof.model.hang import note_killed

    for error in failures:
        first = getattr(error, "get_first_failure", None)
        if first is not None:
            rank, failure = first()
            if failure.exitcode == -signal.SIGKILL:
                note_killed(directory, rank)


def _show(failures: list[Exception]) -> None:
    """Shows failed workers as torchrun shows them."""
    import traceback

    from ddlprof.launch.program import without_our_frames

    for error in failures:
        error.__traceback__ = without_our_frames(error.__traceback__)
        traceback.print_exception(error, file=sys.stderr)
