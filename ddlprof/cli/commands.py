"""The commands, each imported when it is asked for: who runs one does not wait for twenty."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, MutableMapping
from typing import Any, NamedTuple

import typer
from typer.core import TyperGroup


class Named(NamedTuple):
    """A command, or a group of them, by name."""

    help: str
    """For the list of commands: a line of it."""
    module: str = ""
    """In `ddlprof.cli`; empty: called as the command is."""
    takes_all: bool = False
    """What follows the script belongs to the script, options included."""


COMMANDS = {
    "run": Named("Run a training script and measure where its steps go.", takes_all=True),
    "characterize": Named("Run a script several times, without one thing after another.", takes_all=True),
    "sparsity": Named("Count the multiply-adds that zeros make unnecessary.", takes_all=True),
    "report": Named("Show a run: card, JSON, CSV, page or trace."),
    "compare": Named("Say what differs between runs, beyond the noise."),
    "watch": Named("Show a run while it trains."),
    "export": Named("Write the tables of a run as CSV or Parquet."),
    "fleet": Named("List all runs under a folder or bucket."),
    "import": Named("Make a run of profiler traces.", "import_"),
    "share": Named("Write a run as one file without names."),
    "recommend": Named("Rank cloud machines that finish a job in time by its cost."),
    "predict": Named("Predict the step of a job on one target, class by class."),
    "elastic": Named("Share GPUs out among jobs that can run on more or fewer."),
    "plan": Named("Plan a job on unequal GPUs."),
    "features": Named("Count the operators and memory of a model without running it."),
    "fuse": Named("Train models of one shape as one, where that is faster."),
    "probe": Named("Measure what operators and links reach on this machine."),
    "doctor": Named("Say what can be measured on this machine, and why not more."),
    "instances": Named("List the cloud machines with GPUs, and refresh their prices."),
    "cluster": Named("Try scheduling policies on traces of jobs."),
}


class Commands(MutableMapping[str, Any]):
    """The commands by name; one is made when it is looked up."""

    def __init__(self) -> None:
        self._names = list(COMMANDS)
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = _made(name, COMMANDS[name])
        return self._made[name]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __setitem__(self, name: str, command: Any) -> None:
        self._made[name] = command
        if name not in self._names:
            self._names.append(name)

    def __delitem__(self, name: str) -> None:
        self._names.remove(name)
        self._made.pop(name, None)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class LazyGroup(TyperGroup):
    """The group of all commands, whose list needs none of them."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = Commands()

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Writes the list."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, named.help) for name, named in COMMANDS.items()])


def _made(name: str, named: Named) -> Any:
    module = named.module or name
    found = importlib.import_module(f"ddlprof.cli.{module}")
    of_its_own = getattr(found, "app", None)
    if of_its_own is None:
        of_its_own = typer.Typer(rich_markup_mode=None, add_completion=False)
        settings = {"allow_interspersed_args": False} if named.takes_all else None
        of_its_own.command(context_settings=settings)(getattr(found, module))
    command = typer.main.get_command(of_its_own)
    command.name = name
    return command
