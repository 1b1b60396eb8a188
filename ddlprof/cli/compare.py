"""`ddlprof compare`: two runs, or two groups of runs, side by side."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from ddlprof.base.errors import UserError
from ddlprof.cli.latest import run_argument
from ddlprof.cli.output import Out, format_option, wanted

FORMATS = ("table", "json", "markdown", "html")
BETWEEN = "vs"
"""The word between the runs of A and those of B."""
GATE_BROKEN = 1
_ONE_ERROR = (
    f"give one run, the word {BETWEEN}, and another: ddlprof compare A B, or ddlprof compare A1 A2 {BETWEEN} B1 B2"
)


def compare(
    runs: Annotated[
        list[str] | None,
        run_argument(
            "Run directories or URLs: A and B, or several of each with the word vs between them.",
            "A... [vs] B...",
            ("last~1", "last"),
        ),
    ] = None,
    fail_on: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CLASS=LIMIT,...",
            help="Exit with 1 if a class, a part of one, or step is longer in B than in A by more than LIMIT, and this "
            "is not noise. data=5% is 5 % of A's step, data=8ms is 8 ms a step.",
        ),
    ] = None,
    out: Out = None,
    format: Annotated[str | None, format_option(FORMATS)] = None,
    noise: Annotated[
        str | None,
        typer.Option(
            metavar="PERCENT",
            help="How much equal runs differ, as a standard deviation in per cent of the step. Used for a side that "
            "is a single run [1%, more if it had to wait for processors].",
        ),
    ] = None,
) -> None:
    """Compare runs class by class, and say what is more than noise and what changed.

    The exit code is 1 if a limit of --fail-on is broken, 2 if the input is bad, else 0.
    """
    from ddlprof.analysis.compare import parse_gates
    from ddlprof.cli.fast_path import analysed_run
    from ddlprof.cli.screen import progress
    from ddlprof.report.compare.data import build
    from ddlprof.report.compare.formats import FORMATS as RENDERERS

    a, b = _sides(runs or [])
    destinations = wanted(out, format, FORMATS)
    gates = [gate for text in fail_on or [] for gate in parse_gates(text)]
    allowed = None if noise is None else _percent(noise)
    with progress("reading") as advance:
        analysed = [[analysed_run([run], advance) for run in side] for side in (a, b)]
    data = build(analysed[0], analysed[1], gates, allowed)
    destinations.write(RENDERERS, data)
    if data.broken:
        raise typer.Exit(GATE_BROKEN)


def _sides(runs: list[str]) -> tuple[list[str], list[str]]:
    if BETWEEN not in runs:
        if len(runs) != 2:
            raise UserError(_ONE_ERROR)
        return runs[:1], runs[1:]
    at = runs.index(BETWEEN)
    a, b = runs[:at], runs[at + 1 :]
    if not a or not b or BETWEEN in b:
        raise UserError(_ONE_ERROR)
    return a, b


def _percent(text: str) -> float:
    found = re.fullmatch(r"(\d{1,2}(?:\.\d*)?|\.\d+) *%?", text.strip(), re.ASCII)
    if found is None:
        raise UserError(f"--noise {text!r}: give a percentage below 100, as in 2%")
    return float(found[1]) / 100
