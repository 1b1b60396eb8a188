"""The processes of `ddlprof sparsity`: runs the script in one of its own and counts zeros there."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddlprof.base.errors import complain
from ddlprof.base.units import count
from ddlprof.extensions.sparsity.model import LstmSeen, LstmTiming, SparsityCounts, SparsityRequest, read_counts
from ddlprof.launch.afterwards import EndTask, afterwards
from ddlprof.launch.command import run_words
from ddlprof.launch.target import PythonCommand, interpreter_options
from ddlprof.model.options import Instead

if TYPE_CHECKING:
    from ddlprof.extensions.sparsity.collect.watch import SparsityWatch

DEFAULT_DROPOUT = 0.5
"""The share dropped in the comparison if the script's LSTM has no dropout."""
_SHOW_S = 3600.0
"""Against hanging: timing a script's LSTMs, which the user asks for, takes minutes."""
_ROOT = str(Path(__file__).parents[3])
_TIMING = "import sys; sys.path.append(sys.argv[1]); from ddlprof.extensions.sparsity.nn.timing import main; main()"
"""Not `-m`, as ddlprof may be importable only from the path of this process."""


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


def time_lstms(counts: SparsityCounts) -> tuple[list[LstmTiming], list[str]]:
    """Times the script's LSTMs and the same with structured dropout on its device.

    Returns the timings, and a sentence for each LSTM that cannot be timed.
    """
    seen, refused = [], []
    for lstm in counts.lstms:
        why = "two directions" if lstm.bidirectional else "projections" if lstm.projected else ""
        if why:
            refused.append(f"{lstm.name} is not timed: StructuredDropoutLSTM has no {why}")
        else:
            seen.append(lstm)
    names = "input_size", "hidden_size", "num_layers", "batch", "length"
    shares = [lstm.dropout or DEFAULT_DROPOUT for lstm in seen]
    shapes = [
        {name: getattr(lstm, name) for name in names} | {"dropout": share}
        for lstm, share in zip(seen, shares, strict=True)
    ]
    asked = json.dumps({"device": counts.device, "threads": counts.threads, "shapes": shapes})
    done = subprocess.run(
        [sys.executable, "-c", _TIMING, _ROOT], input=asked, capture_output=True, text=True, check=False
    )
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no output"])[-1]
        return [], [*refused, f"the LSTMs could not be timed: {reason}"]
    return [
        LstmTiming(lstm.name, _shape_in_words(lstm), share, **times)
        for lstm, share, times in zip(seen, shares, json.loads(done.stdout), strict=True)
    ], refused


def _shape_in_words(lstm: LstmSeen) -> str:
    layers = f"{lstm.num_layers} layers, " if lstm.num_layers > 1 else ""
    return f"{lstm.input_size} -> {lstm.hidden_size}, {layers}batch {lstm.batch}, {count(lstm.length, 'step')}"


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
