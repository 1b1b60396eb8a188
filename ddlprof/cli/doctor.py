"""`ddlprof doctor`: what can be measured on this machine, and why not where it cannot."""

from __future__ import annotations

from typing import Annotated

import typer

from ddlprof.cli.output import Out, format_option, wanted

FORMATS = ("table", "json")


def doctor(out: Out = None, format: Annotated[str | None, format_option(FORMATS)] = None) -> None:
    """Say what can be measured on this machine, and why not where it cannot."""
    from ddlprof.doctor import all_checks
    from ddlprof.model.checks import can_run
    from ddlprof.report.doctor import as_json, as_table

    destinations = wanted(out, format, FORMATS)
    checks = all_checks()
    destinations.write({"table": as_table, "json": as_json}, checks)
    if not can_run(checks):
        raise typer.Exit(1)
