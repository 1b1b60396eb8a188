"""Plans to start, and the files of them."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from ddlprof.emit.engines import ENGINES
from ddlprof.emit.start import Start
from scripts.lab.emitted_files import NAME, P4D, STARTS

ONE, TWO, ONE_ON_SPOT, TWO_ON_SPOT = STARTS.values()
SPOT = replace(P4D, is_spot=True)


def rendered(engine: str, start: Start) -> str:
    """The file of an engine."""
    return ENGINES[engine].render(start)


def to_fill_in(text: str) -> tuple[set[str], set[str]]:
    """The names that the comments explain, and those that stand for something."""
    comments = [line for line in text.splitlines() if line.startswith("#")]
    explained = {found[1] for line in comments if (found := re.match(r"#   (YOUR_\w+): .", line))}
    used = {name for line in text.splitlines() if not line.startswith("#") for name in NAME.findall(line)}
    return explained, used


def container(pod: dict[str, Any]) -> dict[str, Any]:
    """The only container of a pod."""
    (found,) = pod["containers"]
    return dict(found)
