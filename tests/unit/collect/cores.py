"""The recorder and the watch of the loop on each core, so that one suite tests both."""

from __future__ import annotations

from typing import Any, NamedTuple

from ddlprof.collect import core, python_core
from ddlprof.collect.recorder import Bookkeeping, Recorder
from ddlprof.collect.steps.loop import GapLooks, RecorderLoop


class PythonLoopWatch(GapLooks, python_core.LoopWatch):
    """On the core in Python, whichever this process uses."""


class PythonRecorder(Bookkeeping, python_core.EventLog):
    """On the core in Python, whichever this process uses."""

    new_loop = PythonLoopWatch


class Core(NamedTuple):
    """What a test makes. `Any`: the classes of the two are alike and not related."""

    name: str
    recorder: Any
    loop: Any
    functions: Any


PYTHON = Core("python", PythonRecorder, PythonLoopWatch, python_core)
CORES = [PYTHON, *([Core("c", Recorder, RecorderLoop, core)] if core.IN_C else [])]
