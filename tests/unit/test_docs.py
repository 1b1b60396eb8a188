"""Links between the pages of the documentation lead to files and headings that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted((*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("instance_catalog/data/*.md")))


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
