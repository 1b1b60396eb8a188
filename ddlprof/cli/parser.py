"""The commands of `ddlprof`, each imported only when it is called, and the errors for wrong arguments."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperGroup

import ddlprof
from ddlprof.base.errors import complain
from ddlprof.cli.options import with_values
from ddlprof.cli.panels import show_panels


class Named(NamedTuple):
    """A command, or a group of them, by name."""

    help: str
    """The command's line in the list of commands."""
    examples: Sequence[str] = ()
    """The words after `ddlprof` in the examples at the end of the command's own help."""
    module: str = ""
    """The module in `ddlprof.cli`; empty: it has the command's name."""
    takes_all: bool = False
    """Whether the words after the script, options included, belong to the script."""


GROUPS = {
    "Profile": {
        "run": Named(
            "Run a training script and measure where its steps go.",
            ["run train.py --epochs 1", "run --nproc-per-node 4 train.py"],
            takes_all=True,
        ),
        "watch": Named("Show a run while it trains.", ["watch RUN", "watch RUN --once"]),
        "report": Named(
            "Show a run: card, JSON, page or trace.",
            ["report RUN", "report RUN -o run.html -o run.json"],
        ),
        "compare": Named(
            "Say what differs between runs, beyond the noise.",
            ["compare BEFORE AFTER", "compare BEFORE AFTER --fail-on step=5% -o difference.md"],
        ),
        "export": Named(
            "Write the tables of a run as CSV or Parquet.",
            ["export RUN -o tables", "export RUN --format parquet -o lake"],
        ),
        "import": Named("Make a run of profiler traces.", ["import traces/*.json.gz -o RUN"], "import_"),
        "share": Named("Write a run as one file without names.", ["share RUN -o run.zip", "share --inspect run.zip"]),
        "fleet": Named(
            "List all runs under a folder or bucket.",
            ["fleet ddlprof-runs --since 7d", "fleet s3://bucket/runs --sort usd -o runs.csv"],
        ),
        "characterize": Named(
            "Run a script several times, without one thing after another.",
            ["characterize train.py", "characterize --max-steps 200 --format json train.py"],
            takes_all=True,
        ),
    },
    "Choose": {
        "recommend": Named(
            "Rank cloud machines that finish a job in time by its cost.",
            [
                "recommend RUN --budget 12h --epochs 90",
                "recommend RUN --budget 12h --samples 1e8 -o plans.html --emit slurm",
            ],
        ),
        "predict": Named(
            "Predict the step of a job on one target, class by class.",
            [
                "predict RUN --instance p4d.24xlarge --nodes 2",
                "predict 8b.json --gpu H100 --layout tp4,pp2,dp8 --vary pipeline",
            ],
        ),
        "learn": Named(
            "Learn from all your runs how fast your machines are.",
            ["learn ddlprof-runs -o mine.json", "learn s3://bucket/runs -o mine.json -o -"],
        ),
        "features": Named(
            "Count the operators and memory of a model without running it.",
            ["features torchvision:resnet50 --input 3,224,224 -o resnet50.json", "features config.json --seq-len 8192"],
        ),
        "probe": Named(
            "Measure what operators and links reach on this machine.",
            ["probe", "probe --dry-run -o machine.json"],
        ),
        "instances": Named(
            "List the cloud machines with GPUs, and refresh their prices.",
            ["instances --gpu A100 --offered", "instances show p4d.24xlarge"],
        ),
    },
    "Plan": {
        "plan": Named(
            "Plan a job on unequal GPUs.",
            ["plan RUN --machines machines.yaml", "plan RUN --machines machines.yaml -o best.plan.json"],
        ),
        "cluster": Named(
            "Try scheduling policies on traces of jobs.",
            [
                "cluster import sacct history.txt -o jobs.csv",
                "cluster simulate --trace jobs.csv --cluster 8x8 --policy fifo,srtf",
            ],
        ),
        "elastic": Named(
            "Share GPUs out among jobs that can run on more or fewer.",
            ["elastic --jobs jobs.csv --gpus 16", "elastic --jobs jobs.csv --gpus 16 --simulate -o shares.csv"],
        ),
    },
    "Do more": {
        "fuse": Named(
            "Train models of one shape as one, where that is faster.",
            ["fuse models:net --data data:batches --sweep lr=0.1,0.01,0.001 -o trials.csv"],
        ),
        "sparsity": Named(
            "Count the multiply-adds that zeros make unnecessary.",
            ["sparsity train.py", "sparsity -o layers.csv train.py"],
            takes_all=True,
        ),
    },
    "Help": {
        "doctor": Named("Say what can be measured on this machine, and why not more.", ["doctor"]),
    },
}
COMMANDS = {name: named for group in GROUPS.values() for name, named in group.items()}
EXAMPLES = {
    "instances show": ["instances show p4d.24xlarge", "instances show p4d.24xlarge -o p4d.json"],
    "instances refresh": ["instances refresh --region us-east-1,eu-west-1"],
    "instances measured": ["instances measured RUN --instance p3.16xlarge"],
    "cluster simulate": [
        "cluster simulate --trace jobs.csv --cluster 8x8 --policy fifo,srtf",
        "cluster simulate --trace jobs.csv --cluster 8x8 --policy las -o page.html -o tables/",
    ],
    "cluster import": [
        "cluster import sacct history.txt -o jobs.csv",
        "cluster import csv queue.csv --columns submit=Queued,gpus=GPUs --gpus 64 -o - -o jobs.csv",
    ],
    "cluster advise": [
        "cluster advise RUN --instance p3.16xlarge --gpus 16",
        "cluster advise RUN --gpus 16 --remaining 12h --emit slurm",
    ],
}
"""The examples of commands in a group."""


class Commands(MutableMapping[str, Any]):
    """The commands by name; each is imported when it is looked up."""

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
        """Writes the list, group by group, in columns that are the same for all."""
        width = max(map(len, COMMANDS))
        for title, group in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(f"{name:{width}}", named.help) for name, named in group.items()])


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
    command.epilog = _epilog(named.examples)
    _simplify_help(command)
    for inner, below in getattr(command, "commands", {}).items():
        below.epilog = _epilog(EXAMPLES[f"{name} {inner}"])
        _simplify_help(below)
    return command


_TYPES = re.compile(r" <(?:str|list\[str\]|path)>")
_BRACES = re.compile(r"\{([^{}\s]+)\}(?:\.\.\.)?")


def _simplify_help(command: Any) -> None:
    """Lets the help say `RUN...` where typer says `{RUN...}... <list[str]>`."""
    whole_help: Callable[[Any], str] = command.get_help
    show_panels(command)

    def get_help(ctx: Any) -> str:
        usage, line_end, rest = whole_help(ctx).partition("\n")
        return _BRACES.sub(r"\1", usage) + line_end + _TYPES.sub(lambda kind: " " * len(kind[0]), rest)

    command.get_help = get_help


def _epilog(examples: Sequence[str]) -> str:
    lines = [f"  ddlprof {example}" for example in examples]
    return "\n".join(["\b", "Examples:" if len(lines) > 1 else "Example:", *lines])


_MAY_LACK_VALUES = ("recommend", "predict")
"""Commands with an option that means something without its value, too, which click cannot tell from an argument."""
_USAGE_EXIT_CODE = 2
_MAX_STEPS = {"--steps": "--max-steps N"}
_RENAMED = {
    "report": {"--steps": "--step-range A:B", "--csv": "ddlprof export RUN -o DIR"},
    "export": {"--csv": "-o DIR"},
    "watch": {"--steps": "--total-steps N"},
    "characterize": {**_MAX_STEPS, "--json": "--format json, for standard output"},
    "sparsity": _MAX_STEPS,
    "fuse": {**_MAX_STEPS, "--max-b": "--max-models N", "--beside": "--processes N"},
    "fleet": {"--load": "--analyse N"},
    "share": {"--check": "--inspect"},
    "plan": {
        "--cluster": "--machines FILE",
        "--batch": "--global-batch N",
        "--trace-out": "-o FILE --format trace",
    },
    "elastic": {"--per-machine": "--gpus-per-node N"},
    "cluster advise": {"--gpus-per-machine": "--gpus-per-node N"},
    "cluster simulate": {"--csv": "-o DIR/"},
    "instances refresh": {"--instances": "--instance TYPE,..."},
}
"""For each command the options that were renamed, and what to type in their place."""
_RENAMED_EVERYWHERE = {
    "--output": "-o FILE",
    "--csv": "-o FILE.csv",
    "--json": "-o FILE.json",
    "--html": "-o FILE.html",
}

# Plain help: rich mark-up doubles the time of `--help`.
_FIRST_STEPS = ["run train.py", "report RUN -o page.html", "recommend RUN --budget 12h --epochs 90"]

app = typer.Typer(rich_markup_mode=None, cls=LazyGroup, epilog=_epilog(_FIRST_STEPS))


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ddlprof {ddlprof.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Show where the time of each training step of an unmodified PyTorch script goes."""


def call(arguments: list[str]) -> int:
    """Runs the command; returns the exit code. Raises `DdlprofError` as commands do."""
    if arguments and arguments[0] in _MAY_LACK_VALUES:
        arguments = with_values(arguments)
    try:
        # Not app(): that sets sys.excepthook. An int is the exit code of typer.Exit.
        result = typer.main.get_command(app).main(arguments, prog_name="ddlprof", standalone_mode=False)
    except typer.Abort:
        raise KeyboardInterrupt from None
    except Exception as error:
        # Usage errors: click's classes, or typer's copy of them, depending on typer's version.
        if not hasattr(error, "format_message"):
            raise
        command = _command_path(error)
        message = _renamed(command, error) or " ".join(error.format_message().split()).rstrip(".")
        complain(f"{message} (see {command} --help)")
        return _USAGE_EXIT_CODE
    return result if isinstance(result, int) else 0


def _renamed(command: str, usage_error: Exception) -> str | None:
    """A hint on what to type in place of an option that was removed."""
    option = getattr(usage_error, "option_name", "")
    name = command.removeprefix("ddlprof").strip()
    now = _RENAMED.get(name, {}).get(option) or (_RENAMED_EVERYWHERE.get(option) if name else None)
    return f"{option} is gone: type {now}" if now else None


def _command_path(usage_error: Exception) -> str:
    context = getattr(usage_error, "ctx", None)
    return context.command_path if context else "ddlprof"
