"""Finds out whether models can be trained as one, and names the line of the user's code that prevents it."""

from __future__ import annotations

import os
import re
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from ddlprof.base.errors import UserError
from ddlprof.extensions.fusion.traced import Untraceable

_NOT_THE_USERS = (
    os.path.join(os.path.dirname(torch.__file__), ""),
    os.path.join(os.path.dirname(os.path.dirname(__file__)), ""),
)
_REASONS = (
    (
        r"data-dependent control flow|call(?:ing)? \.item\(\)",
        "a value is taken out of a tensor (.item(), float(), a branch) that differs between models",
    ),
    (
        r"dynamic shape|output.*shape.*depend|aten::(nonzero|unique|masked_select)",
        "the shape of a result depends on values",
    ),
    (r"vmap: inplace|inplace.*unmodified", "a tensor that all models share is written in place"),
    (r"Batching rule not implemented", "the operator has no rule for many models"),
)
_FALLBACK = re.compile(r"batching rule for (\S+?)\.? ")


class Unfusible(Exception):
    """Models cannot be trained as one. The message is one line that names the line of the user's code."""


def find_unfusible(step: Callable[[], object]) -> list[str]:
    """The operators that run once for each model, from one step of fused models.

    Raises Unfusible with line and reason.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            step()
        except Untraceable:
            raise
        except UserError as error:
            raise Unfusible(str(error)) from None
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            message = " ".join(str(error).split())
            reason = next((text for pattern, text in _REASONS if re.search(pattern, message, re.I)), None)
            said = f"{type(error).__name__}: {message[:160]}"
            raise Unfusible(f"{_line(error)}{f'{reason} ({said})' if reason else said}") from None
    operators = {found[1] for each in caught if (found := _FALLBACK.search(str(each.message)))}
    return [f"{name} has no rule for many models: it runs once for each" for name in sorted(operators)]


def _line(error: BaseException) -> str:
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((*_NOT_THE_USERS, "<"))
    ]
    if not frames:
        return ""
    last = frames[-1]
    name = os.path.relpath(last.filename) if last.filename.startswith(os.getcwd()) else last.filename
    return f"{name}:{last.lineno}: `{last.line}`: " if last.line else f"{name}:{last.lineno}: "


@contextmanager
def without_warnings() -> Iterator[None]:
    """A context without torch's warnings about operators that vmap cannot map, which a note reports once."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop")
        yield
