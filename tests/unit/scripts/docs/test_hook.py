"""What the documentation site has beside the files in docs/."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer

import ddlprof
from ddlprof.cli.parser import app
from scripts.docs import hook


def shown_options(group: Any, path: str = "") -> Iterator[tuple[str, set[str]]]:
    """Every command below `group` with its options, hidden ones left out."""
    for name, command in group.commands.items():
        yield path + name, {o for p in command.params if not getattr(p, "hidden", False) for o in p.opts if o[0] == "-"}
        if hasattr(command, "commands"):
            yield from shown_options(command, f"{path}{name} ")


def test_every_command_has_its_help() -> None:
    page = hook.commands_page()
    expected = dict(shown_options(typer.main.get_command(app)))
    assert set(re.findall(r"^## ddlprof (.+)$", page, re.M)) == set(expected)
    for name, options in expected.items():
        text = re.search(rf"^## ddlprof {name}\n\n```text\n(.*?)^```", page, re.S | re.M)
        assert text is not None
        assert not [o for o in options | {"--help", "-h"} if not re.search(rf"(?<![\w-]){o}(?![\w-])", text[1])]


@pytest.mark.parametrize(
    ("source", "page", "link", "expected"),
    [
        ("docs/instances.md", "instances.md", "../instance_catalog/data/README.md", "reference/catalogue.md"),
        ("docs/cases/x.md", "cases/x.md", "../trace.md", "../trace.md"),
        ("docs/cases/x.md", "cases/x.md", "../../CONTRIBUTING.md", "../reference/contributing.md"),
        ("docs/cases/x.md", "cases/x.md", "../../scripts/docs/cases.py", None),
        ("CONTRIBUTING.md", "reference/contributing.md", "docs/architecture.md", "../architecture.md"),
        ("docs/trace.md", "trace.md", "measurement.md", "measurement.md"),
        ("docs/trace.md", "trace.md", "../README.md", "index.md"),
    ],
)
def test_links_between_files_become_links_between_pages(
    source: str, page: str, link: str, expected: str | None
) -> None:
    assert hook.moved(source, page, link) == expected


def test_a_link_to_what_the_site_has_not_is_its_text_alone() -> None:
    assert hook.linked("docs/cases/x.md", "cases/x.md", "cases.py", "../../scripts/docs/cases.py", None) == "cases.py"
    assert hook.linked("docs/trace.md", "trace.md", "a", "measurement.md", "#b") == "[a](measurement.md#b)"


def test_every_public_name_of_ddlprof_is_in_the_reference() -> None:
    page = (hook.ROOT / "docs" / "reference" / "python.md").read_text(encoding="utf-8")
    packages = {"recommender", "instance_catalog"}
    assert set(re.findall(r"^::: ddlprof\.(\w+)$", page, re.M)) - packages == set(ddlprof.__all__) - {"__version__"}
