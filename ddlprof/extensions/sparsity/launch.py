"""The processes of `ddlprof sparsity`: runs the script in one of its own and counts zeros there."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddlprof.base.errors import complain
from ddlprof.extensions.sparsity.model import SparsityCounts, SparsityRequest, read_counts
from ddlprof.launch.afterwards import EndTask, afterwards
from ddlprof.launch.command import run_words
from ddlprof.launch.target import PythonCommand, interpreter_options
from ddlprof.model.options import Instead

if TYPE_CHECKING:
    from ddlprof.extensions.sparsity.collect.watch import SparsityWatch

_SHOW_S = 60.0
"""Against hanging."""


def run(command: PythonCommand, steps: int, every: int, show: Callable[[SparsityCounts | None], None]) -> int:
    """Runs the script to its end, and shows the counts; None if nothing was counted. Returns the script's exit code."""
    options = [*interpreter_options(sys.orig_argv, sys.argv), *command.options]
    folder = tempfile.mkdtemp(prefix="ddlprof-sparsity-")
    out = Path(folder) / "counts.json"
    ending = [
        EndTask("the counts are not shown", _SHOW_S, lambda: show(read_counts(out))),
        EndTask(f"{folder} is left", _SHOW_S, lambda: shutil.rmtree(folder)),
    ]
    words = [sys.executable, *options, *command.target.profiled_words()]
    code = run_words(words, Instead(__name__, asdict(SparsityRequest(str(out), steps, every))).environment())
    afterwards(code, ending, quiet=False)
    return code


def start(**request: Any) -> SparsityWatch | None:
    """Starts counting what a `SparsityRequest` asks for in this process. What could not be is reported at the end."""
    try:
        from ddlprof.extensions.sparsity.collect.watch import start

        watch = start(SparsityRequest(**request))
    except Exception as error:  # an error of the counting must not end the training
        complain(f"this script is not counted: {type(error).__name__}: {error}")
        return None
    atexit.register(watch.finish)
    return watch


def is_first_rank() -> bool:
    """Whether this process is rank 0, or was started without a launcher."""
    return os.environ.get("RANK", "0") == "0"
