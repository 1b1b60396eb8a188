"""The list of commands: those of the core, then those of the rooms, then those of other packages."""

from __future__ import annotations

import functools
from collections.abc import Callable

from ddlprof.base.errors import complain
from ddlprof.registry import Command, Extension, from_outside, rooms

_HERE = "ddlprof.cli."
CORE = (
    Extension(
        "Profile",
        {
            "run": Command(
                "Run a training script and measure where its steps go.",
                ["run train.py --epochs 1", "run --nproc-per-node 4 train.py"],
                _HERE + "run",
                takes_all=True,
            ),
            "watch": Command("Show a run while it trains.", ["watch RUN", "watch RUN --once"], _HERE + "watch"),
            "report": Command(
                "Show a run: card, JSON, page or trace.",
                ["report RUN", "report RUN -o run.html -o run.json"],
                _HERE + "report",
            ),
            "compare": Command(
                "Say what differs between runs, beyond the noise.",
                ["compare BEFORE AFTER", "compare BEFORE AFTER --fail-on step=5% -o difference.md"],
                _HERE + "compare",
            ),
            "export": Command(
                "Write the tables of a run as CSV or Parquet.",
                ["export RUN -o tables", "export RUN --format parquet -o lake"],
                _HERE + "export",
            ),
            "import": Command("Make a run of profiler traces.", ["import traces/*.json.gz -o RUN"], _HERE + "import_"),
            "fleet": Command(
                "List all runs under a folder or bucket.",
                ["fleet ddlprof-runs --since 7d", "fleet s3://bucket/runs --sort usd -o runs.csv"],
                _HERE + "fleet",
            ),
        },
    ),
    Extension(
        "Choose",
        {
            "recommend": Command(
                "Rank cloud machines that finish a job in time by its cost.",
                [
                    "recommend RUN --budget 12h --epochs 90",
                    "recommend RUN --budget 12h --samples 1e8 -o plans.html --emit slurm",
                ],
                _HERE + "recommend",
            ),
            "predict": Command(
                "Predict the step of a job on one target, class by class.",
                [
                    "predict RUN --instance p4d.24xlarge --nodes 2",
                    "predict 8b.json --gpu H100 --layout tp4,pp2,dp8 --vary pipeline",
                ],
                _HERE + "predict",
            ),
            "features": Command(
                "Count the operators and memory of a model without running it.",
                [
                    "features torchvision:resnet50 --input 3,224,224 -o resnet50.json",
                    "features config.json --seq-len 8192",
                ],
                _HERE + "features",
            ),
            "instances": Command(
                "List the cloud machines with GPUs, and refresh their prices.",
                ["instances --gpu A100 --offered", "instances show p4d.24xlarge"],
                _HERE + "instances",
            ),
        },
        examples={
            "instances show": ["instances show p4d.24xlarge", "instances show p4d.24xlarge -o p4d.json"],
            "instances refresh": ["instances refresh", "instances refresh --region us-east-1,eu-west-1"],
            "instances measured": ["instances measured RUN --instance p3.16xlarge"],
        },
    ),
    Extension("Plan"),
    Extension("Do more"),
    Extension(
        "Help",
        {
            "doctor": Command(
                "Say what can be measured on this machine, and why not more.", ["doctor"], _HERE + "doctor"
            )
        },
    ),
)
"""The titles in their order, with the commands of the core."""


@functools.cache
def _rooms() -> tuple[Extension, ...]:
    return tuple(rooms())


@functools.cache
def _outside() -> tuple[Extension, ...]:
    return tuple(from_outside())


_SOURCES: tuple[Callable[[], tuple[Extension, ...]], ...] = (lambda: CORE, _rooms, _outside)
"""In the order in which a command is looked for: each is asked only if those before lack it."""


def owner(name: str) -> Extension | None:
    """Whose command this is; None: nobody's."""
    return next((each for source in _SOURCES for each in source() if name in each.commands), None)


def groups() -> dict[str, dict[str, Command]]:
    """All commands by their titles; the first that has a name keeps it."""
    last = CORE[-1].group
    found: dict[str, dict[str, Command]] = {each.group: {} for each in CORE[:-1]}
    taken: set[str] = set()
    for each in (one for source in _SOURCES for one in source()):
        for name, command in each.commands.items():
            if name in taken:
                complain(f"another command {name} is left out: {command.module}")
            else:
                found.setdefault(each.group, {})[name] = command
                taken.add(name)
    found[last] = found.pop(last)
    return {title: commands for title, commands in found.items() if commands}


def commands() -> dict[str, Command]:
    return {name: command for group in groups().values() for name, command in group.items()}
