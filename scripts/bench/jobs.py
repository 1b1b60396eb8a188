"""What the benchmarks share: running a job with and without ddlprof, stated limits, Markdown tables.

The jobs in `jobs/` are ordinary training scripts that know nothing of ddlprof and write what their own clock says.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

JOBS = Path(__file__).resolve().parents[1] / "jobs"
PLAIN = (sys.executable,)


def profiled(directory: Path, *options: str) -> tuple[str, ...]:
    """The words in front of a script that profile it into `directory`."""
    return (sys.executable, "-m", "ddlprof", "run", "--quiet", "--out", str(directory), *options)


def run_job(words: Sequence[str], job: str, truth: Path, **arguments: object) -> dict[str, Any]:
    """Runs `jobs/JOB.py` behind `words` and returns what its own clock wrote; ends this process if it fails."""
    options = [f"--{name.replace('_', '-')}={value}" for name, value in arguments.items() if value is not None]
    command = [*words, str(JOBS / f"{job}.py"), f"--truth={truth}", *options]
    result = subprocess.run(
        command,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    if result.returncode:
        sys.exit(f"{result.stderr}\n{' '.join(command)} ended with {result.returncode}")
    content: dict[str, Any] = json.loads(truth.read_text(encoding="utf-8"))
    return content


@contextlib.contextmanager
def burning(number: int = os.cpu_count() or 1) -> Iterator[None]:
    """So many processes compute beside what runs in the block: one on every core, if nothing is said."""
    burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(number)]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


class Limits:
    """Collects the stated limits that a benchmark checks."""

    def __init__(self) -> None:
        self._checked = 0
        self._missed: list[str] = []

    def at_most(self, what: str, value: float, limit: float) -> None:
        """A value that is not a number misses its limit."""
        self._check(value <= limit, f"{what} is {value:.4g}, limit {limit:g}")

    def at_least(self, what: str, value: float, limit: float) -> None:
        """A value that is not a number misses this limit, too."""
        self._check(value >= limit, f"{what} is {value:.4g}, at least {limit:g} is required")

    def _check(self, kept: bool, message: str) -> None:
        self._checked += 1
        if not kept:
            self._missed.append(message)

    def exit_code(self) -> int:
        """Says which limits were missed: 1 if any."""
        print(f"\n{self._checked - len(self._missed)} of {self._checked} limits kept.")
        for message in self._missed:
            print(f"- missed: {message}")
        return 1 if self._missed else 0


def print_table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A Markdown table; all columns but the first are numbers, so they are set to the right."""
    print("\n| " + " | ".join(headers) + " |")
    print("|---" + "|---:" * (len(headers) - 1) + "|")
    for row in rows:
        print("| " + " | ".join(map(str, row)) + " |")


def progress(message: str) -> None:
    """What is being run, on stderr: the tables have stdout to themselves."""
    print(message, file=sys.stderr, flush=True)
