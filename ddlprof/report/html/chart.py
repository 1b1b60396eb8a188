"""A chart of a page: a place for the drawing, the data for it, what it shows in words, and the same as a table.

`charts.js` draws it when it comes into sight; `kind` names the function there.
"""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddlprof.base.units import Scale
from ddlprof.report.html.element import Content, Html, data_block, tag

LONGEST_LABEL = 60


@dataclass(frozen=True)
class ChartMenu:
    """A menu of what a chart shows, where it can show several things."""

    label: str
    options: Sequence[str]


def chart(
    name: str,
    kind: str,
    data: dict[str, Any],
    *,
    caption: Content,
    alt: str,
    table: Html,
    height: int = 320,
    choice: ChartMenu | None = None,
    steps: tuple[int, int] | None = None,
) -> Html:
    """A figure. `name` is unique on the page, `height` in pixels; `steps`: the first and last to choose between."""
    drawing = tag(
        "div", class_="plot", data_chart=kind, data_source=f"data-{name}", role="img", aria_label=alt,
        style=f"height:{height}px",
    )  # fmt: skip
    return tag(
        "figure",
        tag("figcaption", caption),
        _choice(name, choice) if choice and len(choice.options) > 1 else None,
        _window(name, *steps) if steps else None,
        drawing,
        tag("details", tag("summary", "The same as a table"), table),
        data_block(f"data-{name}", data),
        id=f"chart-{name}",
    )


def _choice(name: str, choice: ChartMenu) -> Html:
    options = [tag("option", short(text), value=number) for number, text in enumerate(choice.options)]
    select = tag("select", options, id=f"choice-{name}", data_choice=True)
    return tag("p", tag("label", choice.label, for_=f"choice-{name}"), " ", select, class_="controls")


def _window(name: str, first: int, last: int) -> Html:
    """Fields for the first and the last step to show: the keyboard's way of zooming."""

    def field(word: str, value: int) -> Html:
        entry = tag("input", type="number", min=first, max=last, value=value, id=f"{word}-{name}", data_window=word)
        return tag("span", tag("label", f"{word} step", for_=f"{word}-{name}"), " ", entry)

    buttons = [tag("button", "All steps", type="button", data_window="all")]
    return tag("p", field("first", first), " ", field("last", last), " ", buttons, class_="controls")


def stacks(
    scale: Scale,
    labels: Sequence[str],
    seconds: Mapping[str, Sequence[float]],
    colours: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The data of a chart of the kind `stacks`, a bar for each label: by class the seconds in each bar. `colours` names
    the classes whose colours other names have."""
    return {
        "unit": scale.unit,
        "labels": list(labels),
        "series": [
            {
                "name": (colours or {}).get(name, name),
                "label": name,
                "values": [round(each * scale.per_second, 4) for each in of_bars],
            }
            for name, of_bars in seconds.items()
        ],
    }


def numbers(values: NDArray[Any], digits: int) -> list[float | None]:
    """The values rounded, None where they are not known."""
    rounded = np.round(np.asarray(values, dtype=np.float64), digits)
    return [None if value != value else int(value) if value == int(value) else value for value in rounded.tolist()]


_LEVELS = 4094
"""Of a packed value: 1 is nothing, 2 to 4095 the least to the largest, in equal ratios, and 0 not known."""


def packed(values: NDArray[Any]) -> dict[str, Any]:
    """Many numbers from 0 on, each to about three digits, as text that `kit.unpacked` reads: a byte or so each.

    The base64 of a zlib stream of the low bytes of all, then of the high bytes.
    """
    known = np.asarray(values, dtype=np.float64)
    above = known[known > 0]
    low, high = (float(above.min()), float(above.max())) if len(above) else (1.0, 1.0)
    ratio = math.log(high / low) / (_LEVELS - 1)
    levels = np.zeros(len(known), dtype="<u2")
    levels[known == 0] = 1
    levels[known > 0] = 2 + np.round(np.log(above / low) / ratio) if ratio else 2
    stream = zlib.compressobj(strategy=zlib.Z_HUFFMAN_ONLY)  # noise does not repeat: smaller and faster than a search
    planes = stream.compress(levels.view(np.uint8).reshape(-1, 2).T.tobytes()) + stream.flush()
    return {"count": len(known), "low": low, "ratio": ratio, "text": base64.b64encode(planes).decode()}


def rounded(value: float | None, digits: int = 5) -> float:
    """A number with the digits that a drawing needs; an unknown value becomes 0."""
    return float(f"{value or 0.0:.{digits}g}")


def short(text: str, most: int = LONGEST_LABEL) -> str:
    """The text, or its beginning and end where it is too long for a label."""
    if len(text) <= most:
        return text
    return f"{text[: most // 2]}…{text[-(most // 2 - 1) :]}"
