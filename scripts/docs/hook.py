"""What the documentation site has beside the files in docs/: pages made at build time, and links that lead to them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
ELSEWHERE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "reference/contributing.md",
    "CHANGELOG.md": "reference/changes.md",
    "instance_catalog/data/README.md": "reference/catalogue.md",
}
"""Pages of the repository outside docs/, and where the site has them."""
WIDTH = 100
LINK = re.compile(r"\[([^\]]+)\]\(([^)\s:#]+)(#[^)\s]*)?\)")
"""A link to a file beside, with its text and its heading."""
SHIM = "https://unpkg.com/iframe-worker/shim"
"""What the theme has pages load so that search works where the site is opened as files; docs/assets has a copy."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that are made here."""
    made = {"reference/cli.md": commands_page()}
    for source, page in ELSEWHERE.items():
        made[page] = (ROOT / source).read_text(encoding="utf-8")
    for name, text in made.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turns links between files of the repository into links between pages of the site."""
    name = page.file.src_uri
    source = next((source for source, made in ELSEWHERE.items() if made == name), f"docs/{name}")
    return LINK.sub(lambda link: linked(source, name, *link.groups()), markdown)


def linked(source: str, page: str, text: str, link: str, fragment: str | None) -> str:
    """The link as the site has it; only its text where it leads to a file that the site has not."""
    to = moved(source, page, link)
    return text if to is None else f"[{text}]({to}{fragment or ''})"


def moved(source: str, page: str, link: str) -> str | None:
    """The link from the page of the site, where `link` is one from the file `source` of the repository."""
    target = (ROOT / source).parent.joinpath(link).resolve().relative_to(ROOT).as_posix()
    of_site = ELSEWHERE.get(target, target.removeprefix("docs/"))
    if of_site == target:  # neither in docs/ nor brought from elsewhere
        return None
    return "../" * page.count("/") + of_site


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Has the page ask nobody else for anything."""
    return output.replace(SHIM, "../" * page.url.count("/") + "assets/iframe-worker.js")


def on_post_template(output_content: str, template_name: str, config: MkDocsConfig) -> str:
    """The same for the page of errors."""
    return output_content.replace(SHIM, "assets/iframe-worker.js")


def commands_page() -> str:
    """Every command with what its `--help` says."""
    import typer

    from ddlprof.cli.parser import app

    parts = ["# Commands\n\nWhat `--help` says of every command.\n"]
    for name, text in helps(typer.main.get_command(app), "ddlprof"):
        parts.append(f"## {name}\n\n```text\n{text.rstrip()}\n```\n")
    return "\n".join(parts)


def helps(command: Any, name: str) -> Iterator[tuple[str, str]]:
    """The name and the help of a command and of those below it."""
    settings = {**command.context_settings, "terminal_width": WIDTH, "max_content_width": WIDTH}
    context = command.context_class(command, info_name=name, **settings)
    yield name, command.get_help(context)
    for below, each in getattr(command, "commands", {}).items():
        yield from helps(each, f"{name} {below}")
