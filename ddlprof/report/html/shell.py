"""The page around its sections: one file without external resources, protected against injected scripts.

The content security policy names the scripts by their hashes, so no other one runs, and allows no request.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from ddlprof.base.package import VERSION
from ddlprof.report.html.element import Content, Html, facts, raw, tag

_ASSETS = files("ddlprof.report.html")
OWN_SCRIPTS = ("kit.js", "charts.js", "comm_charts.js", "curve_charts.js", "plan_charts.js", "page.js")
SCRIPTS = ("vendor/echarts.min.js", *OWN_SCRIPTS)


@dataclass(frozen=True)
class Section:
    """A part of a page, with a heading of its own and a line in the list of contents."""

    name: str
    """Unique on the page; links end with it."""
    title: str
    body: Content


@dataclass(frozen=True)
class Absent:
    """A section that this page lacks, and the reason."""

    title: str
    why: str


def verdict_box(heading: Content, badge: str, severity: str, pairs: Sequence[tuple[str, Content]]) -> Html:
    """The top of the page: the verdict with its badge, if it has one, and its reasons; `severity` sets the colour."""
    title = tag("h2", heading, " ", tag("span", badge, class_=f"badge {severity}") if badge else None)
    return tag("div", title, facts(pairs), class_=f"verdict {severity}")


def page(title: str, subtitle: Content, top: Content, sections: Sequence[Section | Absent]) -> Iterator[str]:
    """The page in pieces, ending with a line end; `top` comes before all sections."""
    shown = [each for each in sections if isinstance(each, Section)]
    left_out = [each for each in sections if isinstance(each, Absent)]
    if left_out:
        why = facts([(each.title, each.why) for each in left_out])
        shown.append(Section("absent", "Not on this page", why))
    yield "<!DOCTYPE html>\n"
    yield f'<html lang="en">\n<head>\n{_head(title)}\n</head>\n<body>\n'
    yield tag("a", "Skip to the content", href="#content", class_="skip")
    yield _banner(title, subtitle, shown)
    yield '<main id="content">\n'
    yield tag("section", top, id="top", aria_label="Verdict")
    for each in shown:
        heading = tag("h2", each.title, id=f"{each.name}-title")
        yield "\n" + tag("section", heading, each.body, id=each.name, aria_labelledby=f"{each.name}-title")
    yield "\n</main>\n"
    yield tag("footer", tag("p", f"ddlprof {VERSION}. Charts: Apache ECharts (Apache License 2.0)."))
    for name in SCRIPTS:
        yield "\n" + raw("script", _asset(name))
    yield "\n</body>\n</html>\n"


def _head(title: str) -> Html:
    script = " ".join(f"'sha256-{_digest(name)}'" for name in SCRIPTS)
    # Charts in SVG have style attributes, so styles cannot be told by hashes; they can load nothing.
    policy = (
        f"default-src 'none'; script-src {script}; style-src 'unsafe-inline'; img-src data:;"
        " base-uri 'none'; form-action 'none'"
    )
    lines = [
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", title),
        tag("link", rel="icon", href="data:,"),
        raw("style", _style()),
    ]
    return Html("\n".join(lines))


def _banner(title: str, subtitle: Content, sections: Sequence[Section]) -> Html:
    links = [tag("li", tag("a", each.title, href=f"#{each.name}")) for each in sections]
    theme = tag("button", "Dark", type="button", id="theme", hidden=True)
    return tag(
        "header",
        tag("div", tag("h1", title), theme, class_="title"),
        tag("p", subtitle, class_="subtitle"),
        tag(
            "nav",
            tag("details", tag("summary", "On this page"), tag("ul", links), open=True),
            aria_label="On this page",
        ),
        tag("noscript", tag("p", "Charts need JavaScript. Every chart is also a table.")),
    )


def _style() -> str:
    """The style sheets. The dark colours apply where the reader's system is dark, unless they chose light, or dark."""
    dark = _asset("dark.css")
    return (
        f"{_asset('page.css')}"
        f'@media (prefers-color-scheme: dark) {{ :root:not([data-theme="light"]) {{\n{dark}}} }}\n'
        f':root[data-theme="dark"] {{\n{dark}}}\n'
    )


@cache
def _asset(name: str) -> str:
    return _ASSETS.joinpath(name).read_text(encoding="utf-8")


@cache
def _digest(name: str) -> str:
    return base64.b64encode(hashlib.sha256(_asset(name).encode()).digest()).decode()
