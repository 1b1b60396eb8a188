"""Runs the jobs of the first half hour, each in a process of its own, for a limited time, and makes rows of them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import ddlprof
from scripts.bench.jobs import PLAIN, profiled

SCRIPTS = Path(__file__).resolve().parents[2]
ROOT = SCRIPTS.parent
JOBS = SCRIPTS / "jobs" / "gpu"
_ENDING_S = 5
"""Time for a launcher to end its workers, before all are killed."""


class Skip(Exception):
    """What this experiment needs is not here."""


class Failed(Exception):
    """A job ended as it should not have."""


@dataclass(frozen=True)
class Bound:
    """What a figure is held against. `known`: a simulated device tells it, too."""

    limit: float
    at_least: bool = False
    known: bool = False

    def kept(self, value: float | None) -> bool:
        """A figure that is not there misses it."""
        return value is not None and (value >= self.limit if self.at_least else value <= self.limit)

    def text(self) -> str:
        """The figure as in the table."""
        return f"{'>=' if self.at_least else '<='} {self.limit:g}"


@dataclass
class Row:
    """What one experiment showed: a line of JSON."""

    name: str
    status: str = "ok"
    """ok, missed, skipped, failed, or how it was rehearsed."""
    reason: str = ""
    figures: dict[str, float | None] = field(default_factory=dict)
    limits: dict[str, str] = field(default_factory=dict)
    missed: list[str] = field(default_factory=list)
    """Figures beyond their limits; in a rehearsal those that the simulation knows."""
    seconds: float = 0.0

    def line(self) -> str:
        """The row as JSON, on one line."""
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class Ended:
    """A job that has ended by itself."""

    code: int
    said: str
    """The end of the job's standard error."""
    seconds: float
    truth: Any
    directory: Path
    """The directory of the run, where the job was profiled."""

    def run(self) -> ddlprof.api.Run:
        """What ddlprof says of it."""
        return ddlprof.load(self.directory)

    @property
    def errors(self) -> list[str]:
        """The lines of the user's tracebacks that say what happened."""
        return [line.strip() for line in self.said.splitlines() if re.match(r"[\w.]+(Error|Exception): ", line)]


class Bench:
    """One experiment's jobs, figures and time."""

    def __init__(self, folder: Path, seconds: float, rehearse: bool, quick: bool, on_host: bool, devices: int) -> None:
        """`seconds`: all its jobs have; `on_host`: a rehearsal of it takes no simulated devices."""
        self.folder, self.rehearse, self.quick = folder, rehearse, quick
        self._deadline = time.monotonic() + seconds
        self._on_host, self._devices = on_host, devices
        self._jobs = 0
        self.figures: dict[str, tuple[float | None, Bound | None]] = {}
        self.notes: list[str] = []

    def pick(self, real: Any, quick: Any, rehearsed: Any) -> Any:
        """Picks a size."""
        return rehearsed if self.rehearse else quick if self.quick else real

    def figure(self, name: str, value: float | None, bound: Bound | None = None) -> None:
        """Adds a figure to the row."""
        self.figures[name] = (value, bound)

    def note(self, text: str) -> None:
        """A remark in the row's reason."""
        self.notes.append(text)

    @property
    def left_s(self) -> float:
        """The seconds before the experiment is cut off."""
        return self._deadline - time.monotonic()

    def environment(self) -> dict[str, str]:
        """The environment of the jobs: that of this process, and the simulation in a rehearsal."""
        variables = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
        path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        variables["PYTHONPATH"] = os.pathsep.join(path)
        if self.rehearse:
            variables["PYTHONPATH"] = os.pathsep.join([str(SCRIPTS / "lab" / "simulated_cuda" / "startup"), *path])
            variables["GPU_REHEARSAL"] = "host" if self._on_host else "device"
            variables["SIMULATED_CUDA"] = json.dumps({"devices": self._devices})
        return variables

    def job(
        self, script: str, *, under: tuple[str, ...] | None = None, fails: bool = False, before: tuple[str, ...] = (),
        **arguments: object,
    ) -> Ended:  # fmt: skip
        """Runs `jobs/gpu/SCRIPT.py`, profiled with the options `under` unless they are None.

        `before`: words in front of all. `fails`: it may end with an error.
        Raises Failed if it does not end as it should, or not in time.
        """
        self._jobs += 1
        truth, directory = self.folder / f"truth-{self._jobs}.json", self.folder / f"run-{self._jobs}"
        options = [f"--{name.replace('_', '-')}={value}" for name, value in arguments.items() if value is not None]
        words = PLAIN if under is None else profiled(directory, *under)
        began = time.monotonic()
        command = [*before, *words, str(JOBS / f"{script}.py"), f"--truth={truth}", *options]
        code, said = call(command, self.environment(), self.left_s, self.folder / f"stderr-{self._jobs}")
        seconds = time.monotonic() - began
        if code and not fails:
            raise Failed(f"{script} {' '.join(options)} ended with {code}: {_last_line(said)}")
        content = json.loads(truth.read_text(encoding="utf-8")) if truth.exists() else None
        return Ended(code, said, seconds, content, directory)


def call(command: list[str], variables: dict[str, str], limit_s: float, errors: Path) -> tuple[int, str]:
    """Exit code and the end of standard error; kills the command and all it started if it takes longer.

    Raises Failed then.
    """
    with errors.open("wb") as file:
        process = subprocess.Popen(
            command, env=variables, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
        )
        try:
            code = process.wait(max(0.1, limit_s))
        except subprocess.TimeoutExpired:
            end(process)
            where = _last_line(errors.read_text(encoding="utf-8", errors="replace"))
            raise Failed(f"killed after {limit_s:.0f} s" + (f": {where}" if where else "")) from None
        except BaseException:
            end(process)
            raise
    return code, errors.read_text(encoding="utf-8", errors="replace")[-20_000:]


def end(process: subprocess.Popen[bytes]) -> None:
    """Ends a process that leads its group: launchers are asked first, as their workers are in groups of their own."""
    below = list(descendants(process.pid))
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_ENDING_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    for pid in below:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def descendants(pid: int) -> Iterable[int]:
    """Processes that this one has started, and those that they have; nothing where there is no /proc."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            fields = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            parents.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    waiting = [pid]
    while waiting:
        for child in parents.get(waiting.pop(), []):
            waiting.append(child)
            yield child


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line]
    return (errors or lines or [""])[-1].strip()[:300]


@dataclass(frozen=True)
class Experiment:
    """One row of the table. `limit_s`: hard, for all its jobs together."""

    name: str
    limit_s: int
    run: Callable[[Bench], None]
    devices: int = 1
    on_host: bool = False
    """A rehearsal of it takes a stand-in on the processor, not simulated devices."""
    question: str = "k"
    """The question it answers, or a part of; see `plan.QUESTIONS`."""


def perform(experiment: Experiment, folder: Path, limit_s: float, rehearse: bool, quick: bool, devices: int) -> Row:
    """Runs one experiment. `devices`: on this machine. Raises nothing but what the user's interrupt does."""
    row = Row(experiment.name)
    began = time.monotonic()
    wanted = max(1, experiment.devices)
    bench = Bench(folder, limit_s, rehearse, quick, experiment.on_host, wanted)
    try:
        if not rehearse and devices < wanted:
            raise Skip(f"needs {wanted} GPUs, {devices} here")
        experiment.run(bench)
        judge(row, bench, experiment.on_host)
    except Skip as reason:
        row.status, row.reason = "skipped", str(reason)
    except Exception as error:
        judge(row, bench, experiment.on_host)  # what it has found so far
        row.status, row.reason = "failed", f"{type(error).__name__}: {error}".removeprefix("Failed: ")
    row.seconds = round(time.monotonic() - began, 1)
    return row


def judge(row: Row, bench: Bench, on_host: bool) -> None:
    """Figures, limits and status into the row."""
    for name, (value, bound) in bench.figures.items():
        row.figures[name] = None if value is None else float(f"{value:.4g}")
        if bound is None:
            continue
        row.limits[name] = bound.text()
        if not bound.kept(value) and (not bench.rehearse or (bound.known and not on_host)):
            row.missed.append(name)
    row.status = "missed" if row.missed else "ok"
    if bench.rehearse:
        row.status = "rehearsed on the host" if on_host else "rehearsed"
        if row.missed:
            bench.note("not as the simulation knows it: " + ", ".join(row.missed))
    row.reason = "; ".join(bench.notes)


def table(rows: Iterable[Row]) -> list[str]:
    """A table of Markdown."""
    lines = ["| experiment | status | figures (limits) | seconds |", "|---|---|---|---:|"]
    for row in rows:
        figures = []
        for name, value in row.figures.items():
            text = f"{name} {'none' if value is None else f'{value:g}'}"
            figures.append(f"{text} ({row.limits[name]})" if name in row.limits else text)
        said = "; ".join([", ".join(figures)] * bool(figures) + [row.reason] * bool(row.reason))
        lines.append(f"| {row.name} | {row.status} | {said.replace('|', '/')} | {row.seconds:g} |")
    return lines


def python() -> str:
    """This interpreter."""
    return sys.executable
