"""The view of a whole terminal: a snapshot as a rich renderable. Names are plain text, never markup."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ddlprof.live import words
from ddlprof.live.snapshot import GONE, SILENT, TRAINS, Snapshot
from ddlprof.model.classes import TABLE
from ddlprof.model.plain import plain
from ddlprof.report.units import count, gib, percent, scale_for

_COLOURS = ("green", "yellow", "magenta", "blue", "cyan", "red", "bright_black")
_SEVERITIES = {"ok": "bold green", "warning": "bold yellow", "critical": "bold red"}
_STATES = {TRAINS: "green", SILENT: "yellow", GONE: "bold red", "ok": "green", "stopped": "green"}
_BAR_COLUMNS = 40
_LABEL_COLUMNS = 9
_OTHER_LINES = 14
"""Lines of the view that are not ranks, and the two around the ranks."""
_LEAST_RANKS = 3


def render(snapshot: Snapshot, height: int, hint: str = "") -> RenderableType:
    """The view, in at most `height` lines as far as that can be; `hint` is the last of them."""
    rows: list[RenderableType] = [_label("ddlprof", " · ".join(_head(snapshot)), "bold cyan")]
    if waiting := words.waiting(snapshot):
        rows.append(_label("", waiting, "yellow"))
    if snapshot.started:
        rows.append(_label("Progress", words.progress(snapshot)))
        rows += _times(snapshot)
        rows += _verdict(snapshot)
    rows += [
        _label(name, text) for name, text in (("Rank", words.late(snapshot)), ("Silent", _silent(snapshot))) if text
    ]
    if snapshot.ranks:
        rows += [
            _label("Ranks", words.ranks(snapshot)),
            _ranks(snapshot, max(_LEAST_RANKS, height - _OTHER_LINES - len(rows))),
        ]
    if snapshot.damaged:
        rows.append(_label("Note", f"{count(snapshot.damaged, 'damaged part')} of the files left out", "yellow"))
    rows += [_label("Note", note, "yellow") for note in snapshot.notes[:2]]
    if hint:
        rows.append(Text(plain(hint), "dim", no_wrap=True, overflow="ellipsis"))
    return Group(*rows)


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


def _times(snapshot: Snapshot) -> list[RenderableType]:
    step = snapshot.times_s.get("step")
    if not step:
        return []
    scale = scale_for(step)
    whole = snapshot.whole_s.get("step")
    so_far = f", {scale.time(whole)} over all {count(snapshot.steps, 'step')}" if whole else ""
    recent = f"{scale.time(step)} mean of the last {count(snapshot.recent_steps, 'step')}{so_far}"
    table = Table.grid(padding=(0, 1))
    for justify in ("left", "right", "right", "left"):
        table.add_column(justify=justify, no_wrap=True)
    found = dict(words.shares(snapshot))
    for (name, share), colour in zip(found.items(), _COLOURS, strict=False):
        seconds = snapshot.times_s.get(name) or 0.0
        bar = Text("█" * round(share * _BAR_COLUMNS) or "▏" * (share > 0), colour)
        table.add_row(f"  {name}", scale.number(seconds), percent(share), bar)
    for each in TABLE:
        if each.is_optional and snapshot.times_s.get(each.name) is None:
            table.add_row(f"  {each.name}", "", "", Text("not measured", "dim"))
    return [_label("Step", recent), table]


def _verdict(snapshot: Snapshot) -> list[RenderableType]:
    found = snapshot.verdict
    if found is None:
        return []
    verdict = _label("Verdict", "")
    verdict.append(plain(words.verdict(snapshot)), _SEVERITIES.get(found.severity, "bold"))
    return [verdict, _label("  why", found.why, "dim"), _label("  next", found.next, "dim")]


def _silent(snapshot: Snapshot) -> str:
    return words.last_entry(snapshot)


def _ranks(snapshot: Snapshot, most: int) -> Table:
    """The ranks that are worth a look first."""
    ranks = words.slowest_first(snapshot)
    shown = ranks if len(ranks) <= most else ranks[: most - 1]
    step = snapshot.times_s.get("step")
    scale = scale_for(step) if step else None
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for name in ("  rank", "node", "host", "state", "step", "own work", "waits", "memory", "last entry"):
        table.add_column(
            name, no_wrap=True, justify="left" if name in ("host", "state") else "right", overflow="ellipsis"
        )
    for rank in shown:
        waits, total = rank.means_s.get("comm"), rank.means_s.get("step")
        own = None if total is None else total - (waits or 0.0)
        table.add_row(
            str(rank.rank),
            str(rank.node),
            Text(plain(rank.host)),
            Text(
                plain(words.state_words(rank.state) if rank.state != TRAINS else "trains"),
                _STATES.get(rank.state, "red"),
            ),
            f"{rank.last_step:,}" if rank.last_step is not None else "",
            *("" if value is None or scale is None else scale.time(value) for value in (own, waits)),
            gib(rank.memory_bytes) if rank.memory_bytes is not None else "",
            f"{words.lasting(rank.age_s)} ago",
        )
    if len(shown) < len(ranks):
        table.add_row("", "", f"and {len(ranks) - len(shown)} more")
    return table
