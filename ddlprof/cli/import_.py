"""`ddlprof import`: a run directory of traces that torch.profiler has written."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ddlprof.cli.output import directory_option, say_written


def import_(
    traces: Annotated[
        list[Path],
        typer.Argument(
            metavar="TRACE...",
            help="Traces of torch.profiler or Kineto (.json, .json.gz) of the ranks of one job, or folders of them.",
        ),
    ],
    out: Annotated[Path, directory_option("Run directory to write; it must not exist yet.")],
) -> None:
    """Make a run of profiler traces, for report, export, compare and recommend."""
    from ddlprof.base.text import shell_word
    from ddlprof.base.units import count
    from ddlprof.cli.screen import progress, show
    from ddlprof.importing import import_traces
    from ddlprof.report.text import text_of

    with progress("reading") as advance:
        made = import_traces(traces, out, advance)
    say_written(out)
    of = f"{made.ranks} of " if made.ranks < made.world_size else ""
    show(
        text_of(
            [
                f"{of}{count(made.world_size, 'rank')}, {count(made.steps, 'step')}",
                f"next: ddlprof report {shell_word(str(out), path=True)}",
            ]
        )
    )
