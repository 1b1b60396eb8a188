"""Panels of options in long helps, named by what a user wants. The helps are plain text, so ddlprof writes them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import typer

_OUTPUT = "Output"
_WITHOUT_PANEL = "Help"
"""The section of `--help`, which is of no panel."""
_WIDEST_NAME = 30
"""Longer names of options stand on a line of their own."""


def panel(title: str) -> Callable[..., Any]:
    """`typer.Option` for the options of a panel."""
    return partial(typer.Option, rich_help_panel=title)


job_option = panel("Job")
machines_option = panel("Machines")
price_option = panel("Prices")
output_option = panel(_OUTPUT)


def show_panels(command: Any) -> None:
    """Lets the help of the command show its options by panel; a short one, which has no panel but that of the output,
    stays one list."""
    if {panel_of(option) for option in command.params} - {_OUTPUT, _WITHOUT_PANEL}:
        command.format_options = partial(_write_panels, command)


def panel_of(parameter: Any) -> str:
    """The panel of an option."""
    return getattr(parameter, "rich_help_panel", None) or _WITHOUT_PANEL


def _write_panels(command: Any, context: Any, formatter: Any) -> None:
    sections: dict[str, list[tuple[str, str]]] = {"Arguments": []}
    for each in command.get_params(context):
        title = "Arguments" if each.param_type_name == "argument" else panel_of(each)
        record = each.get_help_record(context)
        if record is not None:
            sections.setdefault(title, []).append(record)
    for title in (_OUTPUT, _WITHOUT_PANEL):  # at the end
        sections[title] = sections.pop(title, [])
    width = min(_WIDEST_NAME, max(len(name) for records in sections.values() for name, _ in records))
    for title, records in sections.items():
        if records:
            with formatter.section(title):
                formatter.write_dl([(f"{name:{width}}", text) for name, text in records])
