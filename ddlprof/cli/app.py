"""The `ddlprof` command: turns errors into one line, and does without the parser where there is nothing to parse.

Importing the parser takes longer than anything else that `ddlprof run` does before a script begins.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys

from ddlprof.base.errors import DdlprofError, UserError, complain

_STARTERS = ("python", "python3", "torchrun", "accelerate", "deepspeed")
_ERROR_EXIT_CODE = 2
_BUG_EXIT_CODE = 3
_INTERRUPT_EXIT_CODE = 130
_CARD_WORDS = ["report", "--at-the-end", "--"]
"""The words before the run directory in the command that shows a finished run (`ddlprof/launch/terminal.py`)."""


def main() -> int:
    """The entry point; returns the exit code."""
    # Frozen objects are left out of the search for cycles at exit: the end of the process frees them anyway.
    atexit.unregister(gc.freeze)
    atexit.register(gc.freeze)
    try:
        code = _call(sys.argv[1:] or ["--help"])
        if sys.stdout is not None:  # closed from the start
            sys.stdout.flush()
    except KeyboardInterrupt:
        return _INTERRUPT_EXIT_CODE
    except BrokenPipeError:  # the reader closed the pipe, as in `ddlprof report RUN | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that the flush at exit does not fail
        return 1
    except Exception as error:
        return _report_bug(error)
    return code


def _call(words: list[str]) -> int:
    try:
        if words[0] == "help":
            words = [*words[1:], "--help"]
        if words[0].endswith(".py") or words[0] in _STARTERS:
            from ddlprof.base.text import shell_word

            raise UserError(f"to run a training, type: ddlprof run {' '.join(map(shell_word, words))}")
        if words[0] == "run":
            from ddlprof.cli.fast_path import run_plainly

            code = run_plainly(words[1:])
            if code is not None:
                return code
        if words[:-1] == _CARD_WORDS:
            from ddlprof.cli.fast_path import show_card

            return show_card(words[-1])
        from ddlprof.cli import parser

        return parser.call(words)
    except DdlprofError as error:
        complain(str(error))
        return _ERROR_EXIT_CODE


def _report_bug(error: Exception) -> int:
    """Names in one line the file with a bug's traceback and where to report the bug; returns the exit code."""
    import tempfile
    import traceback

    text = "".join(traceback.format_exception(error))
    try:
        with tempfile.NamedTemporaryFile("w", prefix="ddlprof-bug-", suffix=".txt", encoding="utf-8", errors="replace",
                                         delete=False) as file:  # fmt: skip
            file.write(text)
        where = file.name
    except OSError as failure:
        where = f"nowhere, as the temporary folder cannot be written ({failure.strerror})"
    words = " ".join(f"{type(error).__name__}: {error}".split())
    complain(f"{words}; this is a bug of ddlprof, please report it{_issues()}: the traceback is in {where}")
    return _BUG_EXIT_CODE


def _issues() -> str:
    """The address for bug reports from the package's metadata; empty where it has none."""
    from importlib.metadata import PackageNotFoundError, metadata

    try:
        urls = metadata("ddlprof").get_all("Project-URL") or []
    except PackageNotFoundError:  # run from its sources
        return ""
    named = dict(url.split(", ", 1) for url in urls)
    return next((f" at {url}" for name, url in named.items() if name.lower() in ("issues", "bug tracker")), "")
