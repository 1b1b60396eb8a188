"""The commands of `ddlprof`, each imported only when it is called, and the errors for wrong arguments."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from ddlprof.base.errors import complain
from ddlprof.base.package import VERSION
from ddlprof.cli.commands import commands, groups, owner
from ddlprof.cli.options import with_values
from ddlprof.cli.panels import show_panels
from ddlprof.registry import Extension


class Commands(Mapping[str, Any]):
    """The commands by name; each is imported when it is looked up."""

    def __init__(self) -> None:
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            extension = owner(name)
            if extension is None:
                raise KeyError(name)
            self._made[name] = _made(name, extension)
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(commands())

    def __len__(self) -> int:
        return len(commands())


class LazyGroup(TyperGroup):
    """The group of all commands, whose list needs none of them."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = Commands()  # type: ignore[assignment]  # nobody adds to it

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Writes the list, group by group, in columns that are the same for all."""
        listed = groups()
        width = max(len(name) for group in listed.values() for name in group)
        for title, group in listed.items():
            with formatter.section(title):
                formatter.write_dl([(f"{name:{width}}", named.help) for name, named in group.items()])


_HELP = {"help_option_names": ["--help", "-h"]}


def _made(name: str, extension: Extension) -> Any:
    named = extension.commands[name]
    found = importlib.import_module(named.module)
    of_its_own = getattr(found, "app", None)
    if of_its_own is None:
        of_its_own = typer.Typer(rich_markup_mode=None, add_completion=False)
        settings = {"allow_interspersed_args": False} if named.takes_all else None
        of_its_own.command(context_settings=settings)(getattr(found, named.module.rpartition(".")[2]))
    command = typer.main.get_command(of_its_own)
    command.name = name
    command.context_settings.update(_HELP)
    command.epilog = _epilog(named.examples)
    _simplify_help(command)
    for inner, below in getattr(command, "commands", {}).items():
        below.context_settings.update(_HELP)
        below.epilog = _epilog(extension.examples[f"{name} {inner}"])
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

# Plain help: rich mark-up doubles the time of `--help`.
_FIRST_STEPS = ["run train.py", "report RUN -o page.html", "recommend RUN --budget 12h --epochs 90"]

app = typer.Typer(
    rich_markup_mode=None,
    cls=LazyGroup,
    epilog=_epilog(_FIRST_STEPS),
    context_settings=_HELP,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ddlprof {VERSION}")
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
        command = _command_path(error, arguments)
        message = _plainly(error.format_message())
        complain(f"{message} (see {command} --help)")
        return _USAGE_EXIT_CODE
    return result if isinstance(result, int) else 0


def _plainly(message: str) -> str:
    """A usage error in one line, without the words of the library that checked the value."""
    text = " ".join(message.split()).rstrip(".")
    return re.sub(r"(?<=: )Value error, |, unable to parse string as an? \w+$", "", text).replace(
        ": Input should be", ": it should be"
    )


def _command_path(usage_error: Exception, arguments: list[str]) -> str:
    context = getattr(usage_error, "ctx", None)
    if context:
        return str(context.command_path)
    return f"ddlprof {arguments[0]}" if arguments and arguments[0] in commands() else "ddlprof"
