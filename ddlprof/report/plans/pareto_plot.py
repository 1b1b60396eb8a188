"""Points of time and cost as a plot of characters, both axes logarithmic."""

from __future__ import annotations

from collections.abc import Callable, Sequence

_COLUMNS, _ROWS = 78, 16
_OTHER = "·"


def plot(
    points: Sequence[tuple[float, float, str]],
    limit: float,
    x_text: Callable[[float], str],
    y_text: Callable[[float], str],
) -> list[str]:
    """Lines of text. A point is x, y (both above 0) and the character that marks it, empty for one among many.

    A vertical line stands at x = `limit` where it is in sight.
    """
    import plotext

    xs, ys = [x for x, _, _ in points], [y for _, y, _ in points]
    x_ends, y_ends = sorted({min(xs), max(xs)}), sorted({min(ys), max(ys)})
    plotext.clear_figure()  # the package draws one figure at a time
    plotext.theme("clear")
    plotext.limit_size(False, False)  # not to the terminal: the text may go to a file
    plotext.plot_size(_COLUMNS, _ROWS)
    plotext.xscale("log")
    plotext.yscale("log")
    for mark in sorted({mark for _, _, mark in points}):  # marked ones on top
        marked = [(x, y) for x, y, own in points if own == mark]
        plotext.scatter([x for x, _ in marked], [y for _, y in marked], marker=mark or _OTHER)
    if x_ends[0] <= limit <= x_ends[-1]:
        plotext.vertical_line(limit)
    plotext.xticks(x_ends, [x_text(x) for x in x_ends])
    plotext.yticks(y_ends, [y_text(y) for y in y_ends])
    drawn: str = plotext.uncolorize(plotext.build())
    plotext.clear_figure()
    return [line.rstrip() for line in drawn.splitlines()]
