"""How long commands take before they do what they are for: help, an import, an empty script, a report of a common run.

Each is run in turn with what it is compared to, so that a slow moment of the machine meets both; figures are medians.
Byte code is there, as after an installation. Prints Markdown for docs/benchmarks.md. Limits: `--help` 7 times an empty
interpreter, `ddlprof run` 0.25 s more than `python`, `report` 0.5 s, and no heavy module where none is needed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from scripts.bench.html import write_run
from scripts.bench.jobs import Limits, print_table, progress
from scripts.bench.merge import run

HEAVY = ("torch", "numpy", "pandas", "rich", "psutil", "scipy", "sklearn", "joblib", "boto3", "pynvml", "typer")
LIMIT_HELP, LIMIT_RUN_S, LIMIT_REPORT_S = 7.0, 0.25, 0.5
COMMON_STEPS = 5_000
DDLPROF = (sys.executable, "-m", "ddlprof")
NOTHING = (sys.executable, "-c", "pass")
IMPORTED = "print(*sorted(m for m in sys.modules if m in {heavy!r}), file=sys.stderr)"


class Command(NamedTuple):
    """What is timed, and what beside it."""

    name: str
    words: Sequence[str]
    beside: Sequence[str]


class Timed(NamedTuple):
    """Seconds of a command and of what it is compared to, pair by pair."""

    command: list[float]
    beside: list[float]

    @property
    def ratio(self) -> float:
        """How many times as long it takes."""
        return statistics.median(one / other for one, other in zip(*self, strict=True))

    @property
    def more_s(self) -> float:
        """How much longer it takes."""
        return statistics.median(one - other for one, other in zip(*self, strict=True))


def main() -> int:
    """Exit code 1 if a limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=25)
    pairs = parser.parse_args().pairs
    print(run(str(Path(__file__).with_name("machine.py"))).output.strip())
    with tempfile.TemporaryDirectory() as folder:
        return measure(Path(folder), pairs)


def measure(folder: Path, pairs: int) -> int:
    """Times all commands, and prints what they took."""
    surroundings = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    surroundings |= {"PYTHONPYCACHEPREFIX": str(folder / "code"), "PYTHONPATH": os.getcwd()}
    script, common = folder / "empty.py", folder / "common"
    script.write_text("")
    write_run(common, 1, COMMON_STEPS)
    plain = (sys.executable, str(script))
    commands = [
        Command("ddlprof --help", (*DDLPROF, "--help"), NOTHING),
        Command("import ddlprof", (sys.executable, "-c", "import ddlprof"), NOTHING),
        Command("ddlprof run of an empty script", (*DDLPROF, "run", str(script)), plain),
        Command("the same with --quiet", (*DDLPROF, "run", "--quiet", str(script)), plain),
        Command(f"ddlprof report of {COMMON_STEPS:,} steps", (*DDLPROF, "report", str(common)), NOTHING),
    ]
    timed = {}
    for command in commands:
        progress(command.name)
        timed[command.name] = in_turn(command, pairs, folder, surroundings)
    print_table(
        ["command", "ms", "beside it, ms", "more, ms", "times"],
        [
            [
                name,
                *(f"{1e3 * statistics.median(seconds):.0f}" for seconds in each),
                f"{1e3 * each.more_s:.0f}",
                f"{each.ratio:.1f}",
            ]
            for name, each in timed.items()
        ],
    )
    helped, _, ran, quiet, reported = timed.values()
    heavy = {
        "--help": imported("from ddlprof.cli.app import main; sys.argv = ['ddlprof', '--help']; main()", {"typer"}),
        "import ddlprof": imported("import ddlprof", set()),
    }
    print(f"\nheavy imports: {', '.join(f'{name}: {found or chr(45)}' for name, found in heavy.items())}")
    limits = Limits()
    limits.at_most("--help, times an empty interpreter", helped.ratio, LIMIT_HELP)
    limits.at_most("ddlprof run, seconds more than python", ran.more_s, LIMIT_RUN_S)
    limits.at_most("ddlprof run --quiet, seconds more than python", quiet.more_s, LIMIT_RUN_S)
    limits.at_most("ddlprof report, seconds", statistics.median(reported.command), LIMIT_REPORT_S)
    for name, found in heavy.items():
        limits.at_most(f"{name}, heavy modules", len(found), 0)
    return limits.exit_code()


def in_turn(command: Command, pairs: int, folder: Path, surroundings: Mapping[str, str]) -> Timed:
    """Runs the command and the other one in turn, after a first time that compiles their byte code."""
    timed = Timed([], [])
    for _ in range(pairs + 1):
        for words, seconds in ((command.beside, timed.beside), (command.words, timed.command)):
            begin = time.perf_counter()
            subprocess.run(words, cwd=folder, env=surroundings, capture_output=True, check=True)
            seconds.append(time.perf_counter() - begin)
    return Timed(timed.command[1:], timed.beside[1:])


def imported(code: str, allowed: Iterable[str]) -> list[str]:
    """The heavy modules that are there after this code."""
    code = f"import sys; {code}; {IMPORTED.format(heavy=tuple(set(HEAVY) - set(allowed)))}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stderr.split()


if __name__ == "__main__":
    sys.exit(main())
