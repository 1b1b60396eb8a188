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
            help="Traces of torch.profiler or Kineto (.json, .json.gz) of the ranks of one job, dumps of NCCL's Flight "
            "Recorder (nccl_trace_rank_*), or folders of either.",
        ),
    ],
    out: Annotated[Path, directory_option("Run directory to write; it must not exist yet.")],
) -> None:
    """Make a run of profiler traces, for report, export, compare and recommend."""
    from ddlprof.base.text import shell_word, text_of
    from ddlprof.base.units import count
    from ddlprof.cli.screen import progress, show
    from ddlprof.importing import dumps_in, import_traces

    dumps = dumps_in(traces)
    if dumps:
        _import_dumps(dumps, out)
        return
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


def _import_dumps(dumps: list[Path], out: Path) -> None:
    """Makes a run of the dumps, and says why it hung."""
    from ddlprof.analysis.hangs import find_hang
    from ddlprof.base.text import shell_word
    from ddlprof.base.units import count
    from ddlprof.cli.screen import show
    from ddlprof.importing import import_dumps
    from ddlprof.report.hang.card import card

    states = import_dumps(dumps, out)
    say_written(out)
    found = find_hang(states, {}, states[0].world_size)
    if found is not None:
        show(card(found))
    of = f"{len(states)} of " if len(states) < states[0].world_size else ""
    typed = shell_word(str(out), path=True)
    show(f"{of}{count(states[0].world_size, 'rank')}\nnext: ddlprof report {typed}\n")
