"""The processes of `ddlprof sparsity`: the script in one of its own, and what counts zeros in it."""

from __future__ import annotations

import atexit
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from ddlprof.launch.command import run_words
from ddlprof.launch.process import interpreter_options
from ddlprof.launch.python import PythonCommand
from ddlprof.model.errors import complain
from ddlprof.model.sparsity import SparsityCounts, SparsityRequest, read_counts

if TYPE_CHECKING:
    from ddlprof.collect.sparsity.watch import Watch


def run(command: PythonCommand, steps: int, every: int) -> tuple[int, SparsityCounts | None]:
    """Runs the script to its end: its exit code and, where it was counted, the counts."""
    options = [*interpreter_options(sys.orig_argv, sys.argv), *command.options]
    with tempfile.TemporaryDirectory(prefix="ddlprof-sparsity-") as folder:
        out = Path(folder) / "counts.json"
        words = [sys.executable, *options, *command.target.profiled_words()]
        code = run_words(words, SparsityRequest(str(out), steps, every).environment())
        return code, read_counts(out)


def start(request: SparsityRequest) -> Watch | None:
    """Begins to count in this process. What is missing then is told at the end."""
    try:
        from ddlprof.collect.sparsity.watch import start

        watch = start(request)
    except Exception as error:  # the training is worth more than the counts
        complain(f"this script is not counted: {type(error).__name__}: {error}")
        return None
    atexit.register(watch.finish)
    return watch


def is_first_rank() -> bool:
    """Whether a launcher has started this process as its rank 0, or none has."""
    return os.environ.get("RANK", "0") == "0"
