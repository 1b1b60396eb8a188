"""`ddlprof cluster`: the commands about many jobs on one cluster, one file each."""

from __future__ import annotations

import typer

from ddlprof.extensions.cluster.cli import advise as cluster_advise
from ddlprof.extensions.cluster.cli import import_ as cluster_import
from ddlprof.extensions.cluster.cli import simulate as cluster_simulate

app = typer.Typer(rich_markup_mode=None, add_completion=False)
app.command()(cluster_simulate.simulate)
app.command()(cluster_advise.advise)
app.command("import")(cluster_import.import_history)


@app.callback()
def _cluster() -> None:
    """Read histories of clusters, try scheduling policies on them, and tell schedulers what placements cost jobs."""
