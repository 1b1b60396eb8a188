"""`ddlprof share`: a run as one file without names, to attach to an issue."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ddlprof.base.errors import UserError
from ddlprof.cli.options import RUN_HELP
from ddlprof.cli.output import say_written


def share(
    run: Annotated[list[str], typer.Argument(metavar="RUN...", help=f"{RUN_HELP} With --inspect, a shared run.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE", help="Archive to write, FILE.zip.")] = None,
    inspect: Annotated[
        bool, typer.Option("--inspect", help="Write nothing, and show every text that a shared run has in it.")
    ] = False,
) -> None:
    """Write a run as one file without names of hosts, models and groups, paths, arguments and source lines."""
    from ddlprof.cli.screen import show
    from ddlprof.extensions.sharing import report as share
    from ddlprof.extensions.sharing import texts, write

    if inspect:
        if out is not None or len(run) > 1:
            raise UserError("--inspect takes one shared run, and no -o")
        path = Path(run[0])
        show(share.checked(run[0], texts.texts_in(path), texts.others_in(path), texts.OWN_WORDS))
        return
    if out is None:
        raise UserError("say which file to write, as in: -o run.zip")
    done = write.share(run, out)
    say_written(out)
    show(share.written(str(out), done.ranks, done.steps, done.file_bytes, done.replaced))
