"""`ddlprof features`: counts of a model that nobody has to run, as a file that `ddlprof recommend` takes for a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from ddlprof.model.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def features(
    model: Annotated[
        str,
        typer.Argument(metavar="MODULE:FACTORY", help="A function without arguments that returns the model."),
    ],
    input: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            metavar="[DTYPE:]SHAPE",
            help="Shape of one sample: 3,224,224, or int64:512 for tokens. Give it once for each argument of forward.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Also write the counts to FILE as JSON, for `ddlprof recommend FILE`.",
        ),
    ] = None,
) -> None:
    """Count the layers, gradients and FLOPs of a model without running it."""
    from dataclasses import replace

    from ddlprof.cli.screen import show
    from ddlprof.cli.torch_needed import require_torch
    from ddlprof.collect.facts.meta_device import build, look, parse_input
    from ddlprof.report.features import as_table

    module, _, factory = model.partition(":")
    if not module or not factory:
        raise UserError(f"{model}: not of the form MODULE:FACTORY, such as models.resnet:resnet50")
    require_torch()
    inputs = [parse_input(text) for text in input or []]
    make = _factory(module, factory)
    made = _users_own(model, lambda: build(make))
    if not hasattr(made, "named_modules"):
        raise UserError(f"{model}: it returned {type(made).__name__}, not a torch.nn.Module")
    found = _users_own(f"forward of {model}", lambda: look(made, inputs))
    facts = replace(found.facts, name=factory)
    show(as_table(facts, found.notes))
    if output is not None:
        _write(facts, output)


def _factory(module: str, name: str) -> Callable[[], Any]:
    """What `name` means in that module, which is imported as by a script in the current directory."""
    import os
    import sys

    sys.path.insert(0, os.getcwd())
    _users_own(f"import of {module}", lambda: __import__(module))  # importlib.import_module shows its own frames
    found: Any = sys.modules[module]
    for part in name.split("."):
        if not hasattr(found, part):
            raise UserError(f"{module} has no {name}{_closest(part, found)}")
        found = getattr(found, part)
    if hasattr(found, "named_modules") and not isinstance(found, type):  # a model that is there already
        return lambda: found
    if not callable(found):
        raise UserError(f"{module}:{name} is no function: it has to return the model")
    return found  # type: ignore[no-any-return]


def _closest(name: str, owner: Any) -> str:
    import difflib

    close = difflib.get_close_matches(name, dir(owner), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _users_own(what: str, call: Callable[[], T]) -> T:
    """Calls the user's code. An error in it is shown with its frames, as Python shows it, and then in one line."""
    import sys
    import traceback

    from ddlprof.launch.program import clean

    try:
        return call()
    except SystemExit:
        raise UserError(
            f"{what} ended the program: keep what a script does under `if __name__ == '__main__'`"
        ) from None
    except Exception as error:
        clean(error)
        if error.__traceback__ is not None:
            traceback.print_exception(error, file=sys.stderr)
        message = str(error).partition("\n")[0]
        raise UserError(f"{what} failed: {type(error).__name__}: {message}") from None


def _write(facts: Any, path: Path) -> None:
    from ddlprof.api import model_workload
    from recommender import PredictionError
    from recommender.workload_file import write_workload

    try:
        write_workload(model_workload(facts, ""), path)
    except PredictionError as error:
        raise UserError(str(error)) from None
