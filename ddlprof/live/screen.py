"""The view of a whole terminal: a snapshot as a rich renderable. Names are plain text, never markup."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ddlprof.base.text import plain
from ddlprof.base.units import Scale, count, gib, percent, scale_for, short_time
from ddlprof.live import words
from ddlprof.live.snapshot import GONE, SILENT, TRAINS, RankView, Snapshot
from ddlprof.model.classes import TABLE

_COLOURS = ("green", "yellow", "magenta", "blue", "cyan", "red", "bright_blue", "bright_black")
_SEVERITIES = {"ok": "bold green", "warning": "bold yellow", "critical": "bold red"}
_STATES = {TRAINS: "green", SILENT: "yellow", GONE: "bold red", "ok": "green", "stopped": "green"}
_BAR_COLUMNS = 40
_LABEL_COLUMNS = 9
_LEAST_RANKS = 3
_FOLDED_LINES = 3
_TALL = 24
"""The least height of a terminal, in lines, on which a sentence may take more than one."""
_HOST_COLUMNS = 20
_GAP = 2
_COLUMNS = ("rank", "node", "host", "state", "step", "own work", "waits", "memory", "last entry")
_FIRST_COLUMNS = ("rank", "state", "step", "own work", "waits", "last entry", "host", "memory", "node")
"""The same columns, the most important first; the last ones are left out of a narrow terminal."""


def render(snapshot: Snapshot, width: int, height: int, hint: str = "") -> RenderableType:
    """The view, in at most `height` lines as far as that can be; `hint` is the last of them."""
    rows: list[Text] = [_label("ddlprof", " · ".join(_head(snapshot)), "bold cyan")]
    if waiting := words.waiting(snapshot):
        rows.append(_label("", waiting, "yellow"))
    if snapshot.hang is not None:
        for line in _folded("Hang", words.hang(snapshot), "", width, _FOLDED_LINES):
            line.stylize("bold red")
            rows.append(line)
    if snapshot.started:
        rows.append(_label("Progress", words.progress(snapshot)))
        rows += _times(snapshot, width)
        rows += _verdict(snapshot, width, _FOLDED_LINES if height >= _TALL else 1)
    told = (("Rank", words.late(snapshot)), ("Sick", words.sick(snapshot)), ("Silent", words.last_entry(snapshot)))
    rows += [_label(name, text) for name, text in told if text]
    after = [_label("Note", note, "yellow") for note in _notes(snapshot)]
    if hint:
        after.append(Text(plain(hint), "dim", no_wrap=True, overflow="ellipsis"))
    if not snapshot.ranks:
        return Group(*rows, *after)
    rows.append(_label("Ranks", words.ranks(snapshot)))
    left = height - len(rows) - len(after) - 2  # the head of the ranks, and the line of the cursor
    return Group(*rows, _ranks(snapshot, width, max(_LEAST_RANKS, left)), *after)


def _notes(snapshot: Snapshot) -> list[str]:
    damaged = [f"{count(snapshot.damaged, 'damaged part')} of the files left out"] if snapshot.damaged else []
    return damaged + snapshot.notes[:2]


def _label(label: str, text: str, style: str = "") -> Text:
    line = Text(no_wrap=True, overflow="ellipsis")
    line.append(f"{label:<{_LABEL_COLUMNS}}", style or "bold")
    line.append(plain(text), "" if label else style)
    return line


def _head(snapshot: Snapshot) -> list[str]:
    parts = [snapshot.name + (f" ({snapshot.model})" if snapshot.model else "")]
    if snapshot.ranks:
        ranks = "process" if snapshot.device == "cpu" else "rank"
        plural = "processes" if snapshot.device == "cpu" else "ranks"
        parts.append(f"{count(snapshot.nodes, 'node')}, {count(snapshot.world_size, ranks, plural)}")
        if snapshot.device != "cpu":
            parts.append(snapshot.device)
    if snapshot.strategy and snapshot.strategy != "none":
        parts.append(snapshot.strategy.upper())
    if snapshot.attempt:
        parts.append(f"attempt {snapshot.attempt}")
    return parts


def _folded(label: str, text: str, style: str, width: int, most: int) -> list[Text]:
    """A sentence in as many lines as it takes, the last of `most` being cut short."""
    room = max(width - _LABEL_COLUMNS, 1)
    lines = textwrap.wrap(plain(text), room, max_lines=most, placeholder="…") or [""]
    return [_label(label if n == 0 else " ", line, style) for n, line in enumerate(lines)]


def _times(snapshot: Snapshot, width: int) -> list[Text]:
    """The mean step and its classes, each with a bar as wide as there is room for."""
    step = snapshot.times_s.get("step")
    if not step:
        return []
    scale = scale_for(step)
    whole = snapshot.whole_s.get("step")
    so_far = f", {scale.time(whole)} over all {count(snapshot.steps, 'step')}" if whole else ""
    recent = f"{scale.time(step)} mean of the last {count(snapshot.recent_steps, 'step')}{so_far}"
    found = dict(words.shares(snapshot))
    optional = [each.name for each in TABLE if each.is_optional and (snapshot.world_size > 1 or each.name != "comm")]
    missing = [name for name in optional if snapshot.times_s.get(name) is None]
    numbers = {name: scale.number(snapshot.times_s.get(name) or 0.0) for name in found}
    names = max(map(len, [*found, *missing]))
    digits = max(map(len, numbers.values()))
    figures = [f"  {name:<{names}} {numbers[name]:>{digits}} {percent(share):>5} " for name, share in found.items()]
    bar_columns = min(_BAR_COLUMNS, max(width - len(figures[0]), 0))
    rows = [_label("Step", recent)]
    for text, share, colour in zip(figures, found.values(), _COLOURS, strict=False):
        row = Text(text, no_wrap=True, overflow="ellipsis")
        rows.append(row.append("█" * round(share * bar_columns) or "▏" * (share > 0), colour))
    return [*rows, *(Text(f"  {name:<{names}} not measured", "dim", no_wrap=True) for name in missing)]


def _verdict(snapshot: Snapshot, width: int, most: int) -> list[Text]:
    found = snapshot.verdict
    if found is None:
        return []
    said = words.verdict(snapshot)
    verdict = _folded("Verdict", said, "", width, most)
    for line in verdict:
        line.stylize(_SEVERITIES.get(found.severity, "bold"), _LABEL_COLUMNS)
    more = (("  why", found.why), ("  next", found.next))
    return [*verdict, *(line for name, text in more for line in _folded(name, text, "dim", width, most))]


def _ranks(snapshot: Snapshot, width: int, most: int) -> Table:
    """The ranks that are worth a look first, in the columns that there is room for."""
    ranks = words.slowest_first(snapshot)
    shown = ranks if len(ranks) <= most else ranks[: most - 1]
    step = snapshot.times_s.get("step")
    cells = [_cells(rank, scale_for(step) if step else None) for rank in shown]
    names = _columns_for(cells, width - _GAP, without="" if snapshot.world_size > 1 else "waits")
    table = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, header_style="dim")
    for name in names:
        left = name in ("host", "state")
        head = f"  {name}" if name == names[0] else name
        table.add_column(
            head, no_wrap=True, justify="left" if left else "right", overflow="ellipsis",
            max_width=_HOST_COLUMNS if name == "host" else None,
        )  # fmt: skip
    for row, rank in zip(cells, shown, strict=True):
        table.add_row(*(Text(row[n], _STATES.get(rank.state, "red") if n == "state" else "") for n in names))
    if len(shown) < len(ranks):
        table.add_row("", f"and {len(ranks) - len(shown)} more")
    return table


def _cells(rank: RankView, scale: Scale | None) -> dict[str, str]:
    """A rank's row, by column."""
    waits, total = rank.means_s.get("comm"), rank.means_s.get("step")
    own = None if total is None else total - (waits or 0.0)
    return {
        "rank": str(rank.rank),
        "node": str(rank.node),
        "host": plain(rank.host),
        "state": plain(words.state_words(rank.state) if rank.state != TRAINS else "trains"),
        "step": f"{rank.last_step:,}" if rank.last_step is not None else "",
        "own work": "" if own is None or scale is None else scale.time(own),
        "waits": "" if waits is None or scale is None else scale.time(waits),
        "memory": gib(rank.memory_bytes) if rank.memory_bytes is not None else "",
        "last entry": f"{short_time(rank.age_s)} ago",
    }


def _columns_for(cells: Sequence[dict[str, str]], width: int, without: str) -> list[str]:
    """The columns that have room, as they are shown; at least the rank and its state, and not the one `without`."""
    chosen: list[str] = []
    for name in _FIRST_COLUMNS:
        if name == without:
            continue
        widest = max((cell_len(row[name]) for row in cells), default=0)
        width -= _GAP + max(len(name), min(widest, _HOST_COLUMNS))
        if width < -_GAP and len(chosen) > 1:
            break
        chosen.append(name)
    return [name for name in _COLUMNS if name in chosen]
