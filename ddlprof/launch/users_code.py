"""Functions of the user that are named on the command line as MODULE:NAME."""

from __future__ import annotations

import inspect
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

from ddlprof.base.errors import UserError
from ddlprof.base.text import closest
from ddlprof.launch.program import clean

T = TypeVar("T")
_LACKING = ("could not create a primitive", "not implemented for 'Half'", "not implemented for 'BFloat16'")
"""Messages of torch and oneDNN when the processor does not support an operator for a data type."""


def split_name(text: str, form: str) -> tuple[str, str]:
    """Splits MODULE:NAME. Raises UserError that shows the expected `form`."""
    module, _, name = text.partition(":")
    if not module or not name:
        raise UserError(f"{text}: not of the form {form}")
    return module, name


def find(module: str, name: str) -> Any:
    """The object `name` of a module, imported as a script in the current directory would import it."""
    if sys.path[:1] != [os.getcwd()]:
        sys.path.insert(0, os.getcwd())
    users_own(f"import of {module}", lambda: __import__(module))  # importlib.import_module would add its own frames
    found: Any = sys.modules[module]
    for part in name.split("."):
        if not hasattr(found, part):
            raise UserError(f"{module} has no {name}{closest(part, dir(found))}")
        found = getattr(found, part)
    return found


def named_parameters(function: Any) -> tuple[str, ...]:
    """The names of the parameters that can be given by name; none for what is no function."""
    if not callable(function):
        return ()
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return ()
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return tuple(name for name, each in signature.parameters.items() if each.kind in kinds)


def users_own(what: str, call: Callable[[], T]) -> T:
    """Calls the user's code. An error in it is printed with the user's frames, and raised again as a UserError."""
    try:
        return call()
    except UserError:
        raise
    except SystemExit:
        raise UserError(
            f"{what} ended the program: keep what a script does under `if __name__ == '__main__'`"
        ) from None
    except Exception as error:
        clean(error)
        if error.__traceback__ is not None:
            traceback.print_exception(error, file=sys.stderr)
        message = str(error).partition("\n")[0]
        if any(text in message for text in _LACKING):
            message += " (torch has no such operator for this processor: use float32 here, or another machine)"
        raise UserError(f"{what} failed: {type(error).__name__}: {message}") from None
