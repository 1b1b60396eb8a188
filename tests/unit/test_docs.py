"""Links between the pages of the documentation lead to files and headings that exist, and its commands are right."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from ddlprof.cli.parser import app
from scripts.docs.hook import ELSEWHERE
from scripts.docs.pictures import IMAGES, LARGEST_BYTES, MADE_OF, PICTURES, digest

ROOT = Path(__file__).parents[2]
OURS = ("ddlprof", "recommender", "instance_catalog", "scripts", "tests", "examples")
SOURCES = [path for folder in OURS for path in ROOT.glob(f"{folder}/**/*.*")]
PAGES = sorted((*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("instance_catalog/data/*.md")))


def anchor(heading: str) -> str:
    """The anchor that GitHub gives a heading: lower case, no punctuation, hyphens for spaces."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def without_code(text: str) -> str:
    return re.sub(r"^ *```.*?^ *```", "", text, flags=re.S | re.M)


def broken_links(page: Path, text: str) -> list[str]:
    """Relative links in `text`, a page's content, whose file or heading does not exist."""
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", without_code(text)):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, fragment = link.partition("#")
        target = page.parent / name if name else page
        if not target.exists():
            broken.append(link)
        elif fragment:
            content = without_code(text if target == page else target.read_text(encoding="utf-8"))
            if fragment not in map(anchor, re.findall(r"^#+ (.*)$", content, re.M)):
                broken.append(link)
    return broken


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert broken_links(page, page.read_text(encoding="utf-8")) == []


def test_broken_links_are_found() -> None:
    text = "# A `b`, c\n[x](#a-b-c) [y](#gone) [z](nowhere.md) [r](README.md#quick-start) [s](README.md#gone)\n"
    assert broken_links(ROOT / "SECURITY.md", text) == ["#gone", "nowhere.md", "README.md#gone"]


def commands(text: str) -> list[str]:
    """The commands of ours in a page's blocks of code, without comments and what is left out (`...`)."""
    found = []
    for block in re.findall(r"^ *```\w*\n(.*?)^ *```", text, flags=re.S | re.M):
        for line in block.replace("\\\n", " ").splitlines():
            command = re.fullmatch(r"\s*(?:\$ )?(ddlprof (?!  ).*)", line)
            if command and not re.match(r"ddlprof  |ddlprof: ", command[1]):
                found.append(command[1])
    return found


def wrong(command: str) -> str | None:
    """What the command line's parser says against it; None if it takes it."""
    ours = re.split(r" (?:&&|[|>&])", command)[0]
    words = [word for word in shlex.split(ours, comments=True) if word != "..."]
    group, name = typer.main.get_command(app), "ddlprof"
    try:
        words = words[1:]
        while hasattr(group, "commands") and words and words[0] in group.commands:
            group, name = group.commands[words[0]], words.pop(0)
        if hasattr(group, "commands") and words and not words[0].startswith("-"):
            return f"{command}: there is no command {words[0]}"
        with group.make_context(name, [word for word in words if word != "--help"]):
            return None
    except Exception as error:  # whatever the library raises for bad usage
        return f"{command}: {getattr(error, 'message', '') or error!r}"


COMMANDS = sorted({command for page in PAGES for command in commands(page.read_text(encoding="utf-8"))})


def test_commands_are_found() -> None:
    assert len(COMMANDS) > 40
    text = "```\n$ ddlprof report RUN   # a card\nddlprof  train · 1 node\n```\nddlprof x\n"
    assert commands(text) == ["ddlprof report RUN   # a card"]


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_of_the_pages_are_taken(command: str) -> None:
    assert wrong(command) is None


@pytest.mark.parametrize("command", ["ddlprof report RUN --colour", "ddlprof recommmend RUN", "ddlprof export"])
def test_wrong_commands_are_found(command: str) -> None:
    assert wrong(command) is not None


def missing_files(text: str) -> list[str]:
    """The files of code that `text` names and that no folder of the repository has."""
    named = re.findall(r"`([\w/]+\.(?:py|c|js|css|json))`", text)
    there = [path.relative_to(ROOT).as_posix() for path in SOURCES]
    return sorted({name for name in named if not any(f"/{path}".endswith(f"/{name}") for path in there)})


def test_the_architecture_names_files_and_packages_that_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    written_by_a_run = {"manifest.json", "operators.json", "summary.json"}
    made_up = {"instance_catalog/refresh/providers/CLOUD.py"}
    assert set(missing_files(text)) <= written_by_a_run | made_up
    packages = {path.parent for path in ROOT.glob("ddlprof/*/__init__.py")}
    here = {package.name for package in packages if not package.is_symlink()}
    assert here == set(re.findall(r"^ddlprof/(\w+)/ ", text, re.M))
    assert {package.name for package in packages} == set(re.findall(r"^\| `ddlprof\.(\w+)` \|", text, re.M))


def test_missing_files_are_found() -> None:
    assert missing_files("`model/records.py`, `gone.py` and `_core.c`") == ["gone.py"]


def test_the_readme_is_a_first_page() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 120
    assert {"make demo", "make test", "pip install .", "docs/images/page.png"} <= set(
        re.findall(r"make demo|make test|pip install \.|docs/images/page\.png", text)
    )


def test_the_pictures_are_of_today() -> None:
    """If not, and what they show looks different: python -m scripts.docs.pictures"""
    assert MADE_OF.read_text(encoding="utf-8").strip() == digest(), "python -m scripts.docs.pictures makes them anew"
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for name in PICTURES:
        assert (IMAGES / name).stat().st_size <= LARGEST_BYTES
        assert name == "page-dark.png" or f"docs/images/{name}" in readme


def pages_of(navigation: Any) -> list[str]:
    if isinstance(navigation, str):
        return [navigation]
    values = navigation.values() if isinstance(navigation, dict) else navigation
    return [page for value in values for page in pages_of(value)]


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    text = re.sub(r"!!python\S*", "", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    shown = pages_of(yaml.safe_load(text)["nav"])
    made = {"reference/cli.md", *ELSEWHERE.values()}
    there = {page.relative_to(ROOT / "docs").as_posix() for page in PAGES if (ROOT / "docs") in page.parents}
    assert sorted(shown) == sorted(there | made)
